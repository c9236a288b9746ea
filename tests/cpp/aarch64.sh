#!/usr/bin/env bash
# Cross-compiles the core for AArch64 and compares the bits of its levels, under qemu, with those of this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/aarch64
mkdir -p "$out"

cross=${AARCH64_CXX:-aarch64-linux-gnu-g++}
emulator=${QEMU_AARCH64:-qemu-aarch64}
for tool in "$cross" "$emulator"; do
  command -v "$tool" >/dev/null || { echo "test-aarch64: $tool is not installed (Debian: g++-aarch64-linux-gnu, qemu-user)" >&2; exit 2; }
done

core="csrc/core/group_norm.cc csrc/core/plan.cc csrc/core/dispatch.cc csrc/core/parallel.cc csrc/core/isa/scalar.cc"
flags="-std=c++17 -O2 -ffp-contract=off -pthread"  # and for AArch64, as in CMakeLists.txt, -fno-strict-aliasing
# shellcheck disable=SC2086
"$cross" $flags -fno-strict-aliasing -static -DGROUPNORM_HAVE_NEON $core csrc/core/isa/neon.cc tests/cpp/bits.cc -o "$out/bits-aarch64"
# shellcheck disable=SC2086
${CXX:-g++} $flags $core tests/cpp/bits.cc -o "$out/bits-native"

GROUPNORM_ISA=scalar "$out/bits-native" 1 >"$out/native.txt"
for level in neon scalar; do
  for threads in 1 3; do
    GROUPNORM_ISA=$level "$emulator" "$out/bits-aarch64" "$threads" >"$out/$level.txt"
    cmp "$out/native.txt" "$out/$level.txt"
  done
done
echo "test-aarch64: $(wc -l <"$out/native.txt") hashes agree: this machine, neon and scalar under qemu, 1 and 3 threads"
