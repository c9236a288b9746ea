"""The host prefix as a C++ program sees it: headers, names, libraries, linking, and the programs of others."""

from __future__ import annotations

import ctypes
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from groupnorm.aclnn import host_prefix
from groupnorm.aclnn.prototypes import PROTOTYPES, MallocConfig, PackageVersion, PtrAttributes

ROOT = Path(__file__).parents[1]
PREFIX = host_prefix()
CUSTOM = PREFIX / "opp" / "vendors" / "custom_nn" / "op_api"
HEADERS = sorted(path for folder in (PREFIX / "include", CUSTOM / "include") for path in folder.rglob("*.h"))
C_HEADERS = [path for path in HEADERS if path.is_relative_to(PREFIX / "include" / "acl")]
LIBRARIES = {
    "libascendcl.so": PREFIX / "lib64",
    "libnnopbase.so": PREFIX / "lib64",
    "libopapi_nn.so": PREFIX / "lib64",
    "libcust_opapi.so": CUSTOM / "lib",
}
ALIASES = {"libacl_rt.so": "libascendcl.so", "libopapi.so": "libopapi_nn.so", "libopapi_math.so": None}
MARKER = "groupnorm_host"


def _tool(*names):
    found = next((path for path in map(shutil.which, names) if path), None)
    assert found, f"{' or '.join(names)}, which the build needs too"
    return found


CXX = _tool("g++", "c++")
INCLUDES = [f"-I{PREFIX / 'include'}", f"-I{CUSTOM / 'include'}"]
FOLDERS = [f"-L{PREFIX / 'lib64'}", f"-L{CUSTOM / 'lib'}"]


def _environment(**more):
    paths = f"{PREFIX / 'lib64'}:{CUSTOM / 'lib'}"
    return {**os.environ, "LD_LIBRARY_PATH": paths, **more}


# A sanitized build has to be linked with its sanitizers; CMake reads the same variable.
FLAGS = os.environ.get("CXXFLAGS", "").split()


def _run(command, **options):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def _declared():
    """Functions of the headers: name -> (result, parameters), types as written."""
    functions = {}
    for header in HEADERS:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(), flags=re.S)
        for result, name, parameters in re.findall(r"ACL_FUNC_VISIBILITY\s+([\w\s*]+?)\s*\b(\w+)\(([^()]*)\);", text):
            listed = [" ".join(part.split()) for part in parameters.split(",")]
            functions[name] = (result, [part for part in listed if part not in ("", "void")])
    return functions


def _exported(library):
    table = _run([_tool("nm"), "-D", "--defined-only", library])
    return {line.split()[-1] for line in table.splitlines()}


# ---- headers ----


@pytest.mark.parametrize("standard", ["c++11", "c++17"])
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_a_header_stands_alone_in_cpp(header, standard, tmp_path):
    source = tmp_path / "alone.cpp"
    source.write_text(f'#include "{header}"\n')
    _run([CXX, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", *INCLUDES, source])


@pytest.mark.parametrize("header", C_HEADERS, ids=lambda path: path.name)
def test_a_header_of_acl_is_c99(header, tmp_path):
    source = tmp_path / "alone.c"
    source.write_text(f'#include "{header}"\n')
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused"]
    _run([_tool("gcc", "cc"), "-std=c99", *warnings, "-fsyntax-only", *INCLUDES, source])


def test_values_are_those_of_cann(tmp_path):
    """The numbers that a program has compiled in; the traps of the interface among them."""
    values = {
        "ACL_BF16": 27,
        "ACL_FORMAT_ND": 2,
        "ACL_FRACTAL_Z_3D": 33,
        "ACL_MEMCPY_DEFAULT": 4,
        "ACL_MEM_MALLOC_HUGE_FIRST": 0,
        "ACL_MEM_TYPE_HIGH_BAND_WIDTH": 0x1000,
        "ACL_EVENT_STATUS_COMPLETE": 0,
        "ACL_EVENT_RECORDED_STATUS_COMPLETE": 1,
        "ACL_STREAM_STATUS_RESERVED": 0xFFFF,
        "ACL_ERROR_REPEAT_INITIALIZE": 100002,
        "ACL_ERROR_FEATURE_UNSUPPORTED": 200006,
        "ACL_ERROR_RT_CONTEXT_NULL": 107002,
        "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT": 507046,
        "ACL_HOST": 1,
        "sizeof(aclCANNPackageVersion)": 128 + 4 * 64 + 128,
        "sizeof(aclrtPtrAttributes)": 28,
    }
    source = tmp_path / "values.cpp"
    checks = "\n".join(f'static_assert({name} == {value}, "{name}");' for name, value in values.items())
    source.write_text(f'#include "acl/acl.h"\n#include "aclnn/acl_meta.h"\n{checks}\n')
    _run([CXX, "-std=c++11", "-fsyntax-only", *INCLUDES, source])


# ---- symbols, and what Python knows of them ----


def test_libraries_export_what_the_headers_declare_and_the_marker():
    exported = Counter(name for library, folder in LIBRARIES.items() for name in _exported(folder / library))
    assert set(exported) == {*_declared(), MARKER}
    assert set(exported.values()) == {1}, "a function lives in one library"


def test_the_marker_tells_these_libraries_from_others():
    for library, folder in LIBRARIES.items():
        assert hasattr(ctypes.CDLL(str(folder / library)), MARKER), library
    assert not hasattr(ctypes.CDLL(None), MARKER)


def test_libraries_are_split_as_cann_splits_them():
    exported = {library: _exported(folder / library) for library, folder in LIBRARIES.items()}
    assert {"aclInit", "aclrtMalloc", "aclDataTypeSize", "aclCreateDataBuffer"} <= exported["libascendcl.so"]
    assert {"aclCreateTensor", "aclSetTensorAddr", "AclSetTensorAddr", "aclnnInit"} <= exported["libnnopbase.so"]
    operator = "aclnnGroupNormalizationGrad"
    assert exported["libcust_opapi.so"] == {operator, f"{operator}GetWorkspaceSize"}
    assert {name for name in exported["libopapi_nn.so"] if not name.startswith("aclnnGroupNorm")} == set()


@pytest.mark.parametrize(("alias", "target"), ALIASES.items())
def test_an_alias_offers_what_it_stands_for(alias, target):
    exported = _exported(PREFIX / "lib64" / alias)
    assert exported == (_exported(PREFIX / "lib64" / target) - {MARKER} if target else set())


# Of the pointers to characters that are not const the functions write through one alone; its bytes must be the caller's
# own, not those of a Python object.
_WRITTEN = ctypes.POINTER(ctypes.c_char)


def _ctype(text):
    """The ctypes type of a C type as the headers write it."""
    handles = "aclTensor|aclScalar|aclIntArray|aclFloatArray|aclBoolArray|aclTensorList|aclScalarList|aclOpExecutor"
    text = re.sub(rf"\b({handles}|aclDataBuffer|aclmdlDataset|aclprofConfig)\b", "void", text)
    text = re.sub(
        r"\b(aclrtStream|aclrtEvent|aclrtContext|aclmdlRI|aclrtBinary|aclrtBinHandle|aclrtFuncHandle)\b", "void*", text
    )
    base = re.sub(r"\bconst\b|[\s*]", "", text)
    stars = text.count("*")
    if base == "char" and stars == 1:
        return ctypes.c_char_p
    if base == "void" and stars > 0:
        kind, stars = ctypes.c_void_p, stars - 1
    else:
        kind = {
            "aclFloat16": ctypes.c_uint16,
            "uint32_t": ctypes.c_uint32,
            "int64_t": ctypes.c_int64,
            "uint64_t": ctypes.c_uint64,
            "size_t": ctypes.c_size_t,
            "float": ctypes.c_float,
            "double": ctypes.c_double,
            "bool": ctypes.c_bool,
            "aclrtCallback": PROTOTYPES["aclrtLaunchCallback"].argtypes[0],
            "aclrtMallocConfig": MallocConfig,
            "aclrtPtrAttributes": PtrAttributes,
            "aclCANNPackageVersion": PackageVersion,
        }.get(base, ctypes.c_int32)  # int32_t, aclError, aclnnStatus and every enum
    for _ in range(stars):
        kind = ctypes.POINTER(kind)
    return kind


def test_python_declares_every_function_as_the_headers_do():
    declared = _declared()
    assert set(PROTOTYPES) == set(declared)
    for name, (result, parameters) in declared.items():
        split = [re.fullmatch(r"(.*?)(\w+)", parameter).groups() for parameter in parameters]
        prototype = PROTOTYPES[name]
        assert prototype.result == _ctype(result), name
        assert [p.name for p in prototype.parameters] == [parameter for _, parameter in split], name
        expected = [_ctype(kind) if name != "versionStr" else _WRITTEN for kind, name in split]
        assert prototype.argtypes == expected, name


def test_enums_are_as_wide_as_python_takes_them(tmp_path):
    text = "".join(header.read_text() for header in HEADERS)
    enums = re.findall(r"typedef enum \w*\s*\{[^{}]*\} (\w+);", text)
    assert len(enums) > 15
    source = tmp_path / "enums.cpp"
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    source.write_text(includes + "\n".join(f'static_assert(sizeof({name}) == 4, "{name}");' for name in enums))
    _run([CXX, "-std=c++11", "-fsyntax-only", *INCLUDES, source])


# ---- programs ----


def test_the_prefix_is_printed():
    script = Path(sys.executable).with_name("groupnorm")
    assert Path(_run([script, "cann-home"]).strip()) == PREFIX


def test_set_env_points_a_shell_at_the_prefix():
    printed = _run(
        ["bash", "-c", f'. {PREFIX}/set_env.sh && echo "$ASCEND_HOME_PATH|$ASCEND_OPP_PATH|$LD_LIBRARY_PATH"']
    )
    home, opp, paths = printed.strip().split("|")
    assert (home, opp) == (str(PREFIX), str(PREFIX / "opp"))
    assert paths.split(":")[:2] == [str(PREFIX / "lib64"), str(CUSTOM / "lib")]


LINK_LINES = {
    "of the document": ["-lcust_opapi", "-lnnopbase", "-lascendcl"],
    "of newer versions": ["-lacl_rt", "-lnnopbase", "-lopapi_math", "-lopapi_nn", "-lcust_opapi"],
    "of older versions": ["-lascendcl", "-lnnopbase", "-lopapi", "-lcust_opapi", "-lpthread", "-ldl"],
}


@pytest.mark.parametrize("link_line", LINK_LINES.values(), ids=LINK_LINES)
def test_errors_have_the_documents_codes_in_cpp(link_line, tmp_path):
    program = tmp_path / "errors"
    source = ROOT / "tests" / "cpp" / "acl_errors.cc"
    _run(
        [
            CXX,
            "-std=c++11",
            "-Wall",
            "-Wextra",
            "-Werror",
            *INCLUDES,
            source,
            *FOLDERS,
            *link_line,
            *FLAGS,
            "-o",
            program,
        ]
    )
    assert _run([program], env=_environment()) == "all as they should be\n"


@pytest.mark.parametrize("library", ["libcust_opapi.so", "libopapi_nn.so"])
def test_an_operator_library_brings_what_it_needs(library):
    """Opened alone it is as good as linked with the others."""
    path = LIBRARIES[library] / library
    needed = re.findall(r"NEEDED.*\[(.*)\]", _run([_tool("readelf"), "-d", path]))
    assert {"libnnopbase.so", "libascendcl.so"} <= set(needed)
    operator = "aclnnGroupNormalizationGrad" if "cust" in library else "aclnnGroupNorm"
    code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).{operator}(None, ctypes.c_uint64(0), None, None))"
    assert _run([sys.executable, "-c", code]) == "161001\n"


# Programs that are not kind: what they do, and how they have to end.
HOSTILE = ["destructors", "throwing", "waiting", "no thread", "fork", "signals", "aborted", "unload", "cancelled"]


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    program = tmp_path_factory.mktemp("hostile") / "hostile"
    source = ROOT / "tests" / "cpp" / "acl_hostile.cc"
    link_line = [*LINK_LINES["of the document"], "-ldl", "-lpthread"]
    _run(
        [
            CXX,
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            *INCLUDES,
            source,
            *FOLDERS,
            *link_line,
            *FLAGS,
            "-o",
            program,
        ]
    )
    return program


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_program_ends_well(hostile, case):
    result = subprocess.run([hostile, case], env=_environment(), capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "ok\n"), f"{result.stdout}\n{result.stderr}"


@pytest.fixture
def document(shared):
    return _run([sys.executable, shared / "spec" / "extract_sample.py"])


def _check_document_output(output):
    lines = output.splitlines()
    assert len(lines) == 1024
    for i, line in enumerate(lines):
        index, value = re.fullmatch(r"result\[(\d+)\] is: (-?\d+\.\d{6})", line).groups()
        exact = -(i % 128) / 128 * 31.75 / 128
        assert int(index) == i
        # Six decimals are printed of a float32 that is within a rounding of the exact value.
        assert abs(float(value) - exact) <= 0.5e-6 + abs(exact) * 2.0**-24 + math.ulp(1.0), line


@pytest.mark.parametrize("standard", ["c++11", "c++17"])
@pytest.mark.parametrize("link_line", LINK_LINES.values(), ids=LINK_LINES)
def test_the_documents_example_runs(document, standard, link_line, tmp_path):
    source, program = tmp_path / "sample.cpp", tmp_path / "sample"
    source.write_text(document)
    _run([CXX, f"-std={standard}", *INCLUDES, source, *FOLDERS, *link_line, *FLAGS, "-o", program])
    _check_document_output(_run([program], env=_environment()))


def _cmake(folder, build):
    cmake = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
    assert cmake, "cmake, which the build needs too"
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    environment["ASCEND_HOME_PATH"] = str(PREFIX)
    _run([cmake, "-S", folder, "-B", build], env=environment)
    _run([cmake, "--build", build], env=environment)
    return environment


def test_the_example_is_a_cmake_project_that_needs_one_variable(tmp_path):
    environment = _cmake(ROOT / "examples" / "acl_cpp", tmp_path / "build")
    output = _run([tmp_path / "build" / "gradient"], env=environment)
    assert "device 0 is an Ascend910B1" in output
    errors = re.search(r"([\d.e+-]+) true gradient, ([\d.e+-]+) printed formula", output).groups()
    assert float(errors[0]) < 1e-5 < 1e-2 < float(errors[1])


def test_the_documents_example_is_a_cmake_project_too(document, tmp_path):
    project = (ROOT / "examples" / "acl_cpp" / "CMakeLists.txt").read_text()
    (tmp_path / "CMakeLists.txt").write_text(project.replace("gradient.cpp", "sample.cpp"))
    (tmp_path / "sample.cpp").write_text(document)
    environment = _cmake(tmp_path, tmp_path / "build")
    _check_document_output(_run([tmp_path / "build" / "gradient"], env=environment))


@pytest.mark.parametrize("alias", ["libacl_rt.so", "libascendcl.so"])
def test_dlopen_of_either_name_is_one_runtime(alias):
    """Memory that the one allocates is memory to the other."""
    code = f"""
import ctypes
alias, real = (ctypes.CDLL({str(PREFIX / "lib64")!r} + "/" + name) for name in ({alias!r}, "libascendcl.so"))
pointer = ctypes.c_void_p()
assert alias.aclInit(None) == 0 and alias.aclrtSetDevice(0) == 0
assert alias.aclrtMalloc(ctypes.byref(pointer), ctypes.c_size_t(8), 0) == 0
assert real.aclrtFree(pointer) == 0
assert alias.aclrtFree(pointer) == 107000
"""
    _run([sys.executable, "-c", code])
