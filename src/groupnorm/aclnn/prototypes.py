"""Every function of the host prefix as ctypes declares it, one line each; a test compares them with the headers.

A line is `name(type parameter, ...) -> type`. `out T` is a pointer that the function writes a T to, `array T` one
that it reads Ts from, `text` characters that it reads, `buffer` room for ACL_PKG_VERSION_MAX_SIZE characters that it
writes, `ptr` an address or a handle.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

_TABLE = """
# acl/acl_base_rt.h
aclDataTypeSize(i32 dataType) -> size
aclFloatToFloat16(f32 value) -> u16
aclFloat16ToFloat(u16 value) -> f32
aclCreateDataBuffer(ptr data, size size) -> ptr
aclDestroyDataBuffer(ptr dataBuffer) -> i32
aclGetDataBufferAddr(ptr dataBuffer) -> ptr
aclGetDataBufferSizeV2(ptr dataBuffer) -> size
aclrtGetSocName() -> text
# acl/acl_rt.h
aclInit(text configPath) -> i32
aclFinalize() -> i32
aclFinalizeReference(out u64 refCount) -> i32
aclGetRecentErrMsg() -> text
aclrtGetVersion(out i32 majorVersion, out i32 minorVersion, out i32 patchVersion) -> i32
aclsysGetCANNVersion(i32 name, out PackageVersion version) -> i32
aclsysGetVersionStr(text pkgName, buffer versionStr) -> i32
aclsysGetVersionNum(text pkgName, out i32 versionNum) -> i32
aclrtPeekAtLastError(i32 level) -> i32
aclrtGetLastError(i32 level) -> i32
aclrtSetDevice(i32 deviceId) -> i32
aclrtResetDevice(i32 deviceId) -> i32
aclrtResetDeviceForce(i32 deviceId) -> i32
aclrtGetDevice(out i32 deviceId) -> i32
aclrtGetDeviceCount(out u32 count) -> i32
aclrtSynchronizeDevice() -> i32
aclrtSynchronizeDeviceWithTimeout(i32 timeout) -> i32
aclrtGetRunMode(out i32 runMode) -> i32
aclrtGetDeviceInfo(u32 deviceId, i32 attr, out i64 value) -> i32
aclrtGetDeviceCapability(i32 deviceId, i32 devFeatureType, out i32 value) -> i32
aclrtSetDeviceSatMode(i32 mode) -> i32
aclrtGetDeviceSatMode(out i32 mode) -> i32
aclrtSetSysParamOpt(i32 opt, i64 value) -> i32
aclrtGetSysParamOpt(i32 opt, out i64 value) -> i32
aclrtCreateContext(out ptr context, i32 deviceId) -> i32
aclrtDestroyContext(ptr context) -> i32
aclrtSetCurrentContext(ptr context) -> i32
aclrtGetCurrentContext(out ptr context) -> i32
aclrtCtxGetCurrentDefaultStream(out ptr stream) -> i32
aclrtCtxSetSysParamOpt(i32 opt, i64 value) -> i32
aclrtCtxGetSysParamOpt(i32 opt, out i64 value) -> i32
aclrtMalloc(out ptr devPtr, size size, i32 policy) -> i32
aclrtMallocAlign32(out ptr devPtr, size size, i32 policy) -> i32
aclrtMallocCached(out ptr devPtr, size size, i32 policy) -> i32
aclrtMallocWithCfg(out ptr devPtr, size size, i32 policy, array MallocConfig cfg) -> i32
aclrtFree(ptr devPtr) -> i32
aclrtMallocHost(out ptr hostPtr, size size) -> i32
aclrtFreeHost(ptr hostPtr) -> i32
aclrtMemcpy(ptr dst, size destMax, ptr src, size count, i32 kind) -> i32
aclrtMemcpyAsync(ptr dst, size destMax, ptr src, size count, i32 kind, ptr stream) -> i32
aclrtMemcpy2d(ptr dst, size dpitch, ptr src, size spitch, size width, size height, i32 kind) -> i32
aclrtMemset(ptr devPtr, size maxCount, i32 value, size count) -> i32
aclrtMemsetAsync(ptr devPtr, size maxCount, i32 value, size count, ptr stream) -> i32
aclrtMemFlush(ptr devPtr, size size) -> i32
aclrtMemInvalidate(ptr devPtr, size size) -> i32
aclrtGetMemInfo(i32 attr, out size free, out size total) -> i32
aclrtPointerGetAttributes(ptr ptr, out PtrAttributes attributes) -> i32
aclrtCreateStream(out ptr stream) -> i32
aclrtCreateStreamWithConfig(out ptr stream, u32 priority, u32 flag) -> i32
aclrtDestroyStream(ptr stream) -> i32
aclrtDestroyStreamForce(ptr stream) -> i32
aclrtSynchronizeStream(ptr stream) -> i32
aclrtSynchronizeStreamWithTimeout(ptr stream, i32 timeout) -> i32
aclrtStreamQuery(ptr stream, out i32 status) -> i32
aclrtStreamAbort(ptr stream) -> i32
aclrtSetStreamFailureMode(ptr stream, u64 mode) -> i32
aclrtCreateEvent(out ptr event) -> i32
aclrtCreateEventWithFlag(out ptr event, u32 flag) -> i32
aclrtCreateEventExWithFlag(out ptr event, u32 flag) -> i32
aclrtDestroyEvent(ptr event) -> i32
aclrtRecordEvent(ptr event, ptr stream) -> i32
aclrtResetEvent(ptr event, ptr stream) -> i32
aclrtSynchronizeEvent(ptr event) -> i32
aclrtSynchronizeEventWithTimeout(ptr event, i32 timeout) -> i32
aclrtStreamWaitEvent(ptr stream, ptr event) -> i32
aclrtEventElapsedTime(out f32 ms, ptr startEvent, ptr endEvent) -> i32
aclrtQueryEvent(ptr event, out i32 status) -> i32
aclrtQueryEventStatus(ptr event, out i32 status) -> i32
aclrtQueryEventWaitStatus(ptr event, out i32 status) -> i32
aclrtSubscribeReport(u64 threadId, ptr stream) -> i32
aclrtUnSubscribeReport(u64 threadId, ptr stream) -> i32
aclrtLaunchCallback(callback fn, ptr userData, i32 blockType, ptr stream) -> i32
aclrtProcessReport(i32 timeout) -> i32
aclmdlRICaptureBegin(ptr stream, i32 mode) -> i32
aclmdlRICaptureEnd(ptr stream, out ptr modelRI) -> i32
aclmdlRIExecuteAsync(ptr modelRI, ptr stream) -> i32
aclmdlRIDestroy(ptr modelRI) -> i32
aclmdlInitDump() -> i32
aclmdlSetDump(text dumpCfgPath) -> i32
aclmdlFinalizeDump() -> i32
aclrtBinaryLoad(ptr binary, out ptr binHandle) -> i32
aclrtLaunchKernel(ptr funcHandle, u32 numBlocks, ptr argsData, size argsSize, ptr stream) -> i32
# acl/acl_mdl.h
aclmdlLoadFromFile(text modelPath, out u32 modelId) -> i32
aclmdlUnload(u32 modelId) -> i32
aclmdlExecute(u32 modelId, ptr input, ptr output) -> i32
aclmdlExecuteAsync(u32 modelId, ptr input, ptr output, ptr stream) -> i32
# acl/acl_op.h
aclopSetModelDir(text modelDir) -> i32
# acl/acl_prof.h
aclprofInit(text profilerResultPath, size length) -> i32
aclprofFinalize() -> i32
aclprofStart(ptr profilerConfig) -> i32
aclprofStop(ptr profilerConfig) -> i32
# aclnn/acl_meta.h
aclCreateTensor(array i64 viewDims, u64 viewDimsNum, i32 dataType, array i64 stride, i64 offset, i32 format, array
    i64 storageDims, u64 storageDimsNum, ptr tensorData) -> ptr
aclInitTensor(ptr tensor, array i64 viewDims, u64 viewDimsNum, i32 dataType, array i64 stride, i64 offset, i32
    format, array i64 storageDims, u64 storageDimsNum, ptr tensorDataAddr) -> i32
aclCreateScalar(ptr value, i32 dataType) -> ptr
aclCreateIntArray(array i64 value, u64 size) -> ptr
aclCreateFloatArray(array f32 value, u64 size) -> ptr
aclCreateBoolArray(array bool value, u64 size) -> ptr
aclCreateTensorList(array ptr value, u64 size) -> ptr
aclCreateScalarList(array ptr value, u64 size) -> ptr
aclDestroyTensor(ptr tensor) -> i32
aclDestroyScalar(ptr scalar) -> i32
aclDestroyIntArray(ptr array) -> i32
aclDestroyFloatArray(ptr array) -> i32
aclDestroyBoolArray(ptr array) -> i32
aclDestroyTensorList(ptr array) -> i32
aclDestroyScalarList(ptr array) -> i32
aclGetViewShape(ptr tensor, out array i64 viewDims, out u64 viewDimsNum) -> i32
aclGetStorageShape(ptr tensor, out array i64 storageDims, out u64 storageDimsNum) -> i32
aclGetViewStrides(ptr tensor, out array i64 stridesValue, out u64 stridesNum) -> i32
aclGetViewOffset(ptr tensor, out i64 offset) -> i32
aclGetFormat(ptr tensor, out i32 format) -> i32
aclGetDataType(ptr tensor, out i32 dataType) -> i32
aclGetIntArraySize(ptr array, out u64 size) -> i32
aclGetFloatArraySize(ptr array, out u64 size) -> i32
aclGetBoolArraySize(ptr array, out u64 size) -> i32
aclGetTensorListSize(ptr tensorList, out u64 size) -> i32
aclGetScalarListSize(ptr scalarList, out u64 size) -> i32
aclSetAclOpExecutorRepeatable(ptr executor) -> i32
aclDestroyAclOpExecutor(ptr executor) -> i32
aclSetInputTensorAddr(ptr executor, size index, ptr tensor, ptr addr) -> i32
aclSetOutputTensorAddr(ptr executor, size index, ptr tensor, ptr addr) -> i32
aclSetTensorAddr(ptr executor, size index, ptr tensor, ptr addr) -> i32
aclSetDynamicInputTensorAddr(ptr executor, size irIndex, size relativeIndex, ptr tensors, ptr addr) -> i32
aclSetDynamicOutputTensorAddr(ptr executor, size irIndex, size relativeIndex, ptr tensors, ptr addr) -> i32
aclSetDynamicTensorAddr(ptr executor, size irIndex, size relativeIndex, ptr tensors, ptr addr) -> i32
aclSetRawTensorAddr(ptr tensor, ptr addr) -> i32
aclGetRawTensorAddr(ptr tensor, out ptr addr) -> i32
AclSetInputTensorAddr(ptr executor, size index, ptr tensor, ptr addr) -> i32
AclSetOutputTensorAddr(ptr executor, size index, ptr tensor, ptr addr) -> i32
AclSetTensorAddr(ptr executor, size index, ptr tensor, ptr addr) -> i32
AclSetDynamicInputTensorAddr(ptr executor, size irIndex, size relativeIndex, ptr tensors, ptr addr) -> i32
AclSetDynamicOutputTensorAddr(ptr executor, size irIndex, size relativeIndex, ptr tensors, ptr addr) -> i32
AclSetDynamicTensorAddr(ptr executor, size irIndex, size relativeIndex, ptr tensors, ptr addr) -> i32
aclDumpOpTensors(text opType, text opName, array ptr tensors, size inputTensorNum, size outputTensorNum, ptr stream)
    -> i32
# aclnn/aclnn_base.h
aclnnInit(text configPath) -> i32
aclnnFinalize() -> i32
# aclnn_group_normalization_grad.h
aclnnGroupNormalizationGradGetWorkspaceSize(ptr x, ptr dy, ptr gamma, ptr mean, ptr rstd, ptr dxOut, out u64
    workspaceSize, out ptr executor) -> i32
aclnnGroupNormalizationGrad(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
# aclnnop/aclnn_group_norm.h
aclnnGroupNormGetWorkspaceSize(ptr self, ptr gamma, ptr beta, i64 N, i64 C, i64 HxW, i64 group, f64 eps, ptr out,
    ptr meanOut, ptr rstdOut, out u64 workspaceSize, out ptr executor) -> i32
aclnnGroupNorm(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
# aclnnop/aclnn_group_norm_backward.h
aclnnGroupNormBackwardGetWorkspaceSize(ptr gradOut, ptr input, ptr mean, ptr rstd, ptr gamma, i64 N, i64 C, i64 HxW,
    i64 group, ptr outputMask, ptr gradInput, ptr gradGammaOut, ptr gradBetaOut, out u64 workspaceSize, out ptr
    executor) -> i32
aclnnGroupNormBackward(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
# aclnnop/aclnn_group_norm_silu.h
aclnnGroupNormSiluGetWorkspaceSize(ptr self, ptr gamma, ptr beta, i64 group, f64 eps, ptr out, ptr meanOut, ptr
    rstdOut, out u64 workspaceSize, out ptr executor) -> i32
aclnnGroupNormSilu(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
aclnnGroupNormSiluV2GetWorkspaceSize(ptr self, ptr gamma, ptr beta, i64 group, f64 eps, bool activateSilu, ptr out,
    ptr meanOut, ptr rstdOut, out u64 workspaceSize, out ptr executor) -> i32
aclnnGroupNormSiluV2(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
# aclnnop/aclnn_group_norm_swish.h
aclnnGroupNormSwishGetWorkspaceSize(ptr x, ptr gamma, ptr beta, i64 numGroups, text dataFormatOptional, f64 eps,
    bool activateSwish, f64 swishScale, ptr yOut, ptr meanOut, ptr rstdOut, out u64 workspaceSize, out ptr executor)
    -> i32
aclnnGroupNormSwish(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
# aclnnop/aclnn_group_norm_swish_grad.h
aclnnGroupNormSwishGradGetWorkspaceSize(ptr dy, ptr mean, ptr rstd, ptr x, ptr gamma, ptr beta, i64 numGroups, text
    dataFormatOptional, f64 swishScale, bool dgammaIsRequire, bool dbetaIsRequire, ptr dxOut, ptr dgammaOut, ptr
    dbetaOut, out u64 workspaceSize, out ptr executor) -> i32
aclnnGroupNormSwishGrad(ptr workspace, u64 workspaceSize, ptr executor, ptr stream) -> i32
"""


class MallocAttribute(ctypes.Structure):
    """aclrtMallocAttribute; the value is a union of 8 bytes."""

    _fields_ = (("attr", ctypes.c_int), ("value", ctypes.c_uint64))


class MallocConfig(ctypes.Structure):
    """aclrtMallocConfig."""

    _fields_ = (("attrs", ctypes.POINTER(MallocAttribute)), ("numAttrs", ctypes.c_size_t))


class PtrAttributes(ctypes.Structure):
    """aclrtPtrAttributes, its location unfolded: id, type."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("type", ctypes.c_int),
        ("pageSize", ctypes.c_uint32),
        ("rsv", ctypes.c_uint32 * 4),
    )


class PackageVersion(ctypes.Structure):
    """aclCANNPackageVersion."""

    _fields_ = (
        ("version", ctypes.c_char * 128),
        ("majorVersion", ctypes.c_char * 64),
        ("minorVersion", ctypes.c_char * 64),
        ("releaseVersion", ctypes.c_char * 64),
        ("patchVersion", ctypes.c_char * 64),
        ("reserved", ctypes.c_char * 128),
    )


_TYPES: dict[str, Any] = {
    "void": None,
    "bool": ctypes.c_bool,
    "u16": ctypes.c_uint16,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "size": ctypes.c_size_t,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "ptr": ctypes.c_void_p,
    "text": ctypes.c_char_p,
    "buffer": ctypes.POINTER(ctypes.c_char),
    "callback": ctypes.CFUNCTYPE(None, ctypes.c_void_p),
    "MallocConfig": MallocConfig,
    "PackageVersion": PackageVersion,
    "PtrAttributes": PtrAttributes,
}

CALLBACK = _TYPES["callback"]


@dataclass(frozen=True)
class Parameter:
    """One parameter: its ctypes type, and what it points to when the function writes or reads through it."""

    name: str
    type: Any
    out: Any = None  # what it makes room for
    array: Any = None


@dataclass(frozen=True)
class Prototype:
    """One function: result and parameters; `header` is where it is declared, under the include folders."""

    name: str
    header: str
    result: Any
    parameters: tuple[Parameter, ...]

    @property
    def argtypes(self) -> list[Any]:
        """What ctypes takes."""
        return [parameter.type for parameter in self.parameters]


_BUFFER = 128  # ACL_PKG_VERSION_MAX_SIZE


def _type(words: list[str]) -> Any:
    if words[0] in ("out", "array"):
        return ctypes.POINTER(_type(words[1:]))
    return _TYPES[words[0]]


def _parameter(text: str) -> Parameter:
    *words, name = text.split()
    target = _type(words[1:]) if len(words) > 1 else None
    written = ctypes.c_char * _BUFFER if words == ["buffer"] else target
    return Parameter(
        name,
        _type(words),
        out=written if words[0] in ("out", "buffer") else None,
        array=target if words[0] == "array" else None,
    )


def _parse(table: str) -> dict[str, Prototype]:
    prototypes = {}
    header = ""
    for line in re.sub(r"\n {4,}", " ", table).splitlines():
        if line.startswith("# "):
            header = line[2:]
        match = re.fullmatch(r"(\w+)\((.*)\) -> (\w+)", line)
        if match:
            name, parameters, result = match.groups()
            listed = [part for part in parameters.split(", ") if part]
            prototypes[name] = Prototype(name, header, _TYPES[result], tuple(map(_parameter, listed)))
    return prototypes


PROTOTYPES = _parse(_TABLE)
