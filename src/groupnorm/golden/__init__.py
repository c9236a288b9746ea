"""Golden data: inputs and expected outputs of named cases, the same bytes on every machine.

request -> data -> expected (float64 truth, or ascend910b: the kernel's own arithmetic) -> store; case_list reads the
vendor's case lists.
"""
