"""What the C interface costs beside the core: runs acl_overhead.cc and stores benchmarks/results/acl.json."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from groupnorm import _core, get_num_threads
from groupnorm.machine import cpu_name

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "acl.json"
BUILD = ROOT / "build" / "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case, shared by both sides (default: 3)")
    parser.add_argument("--json", type=Path, default=RESULT, help=f"where the result goes (default: {RESULT.name})")
    arguments = parser.parse_args()

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        sys.exit("acl.py: no cmake; the build needs it too")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGROUPNORM_PYTHON=OFF", "-DGROUPNORM_TESTS=ON"]
    subprocess.run([cmake, "-S", ROOT, "-B", BUILD, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", BUILD, "--target", "acl_overhead", "-j2"], check=True, stdout=subprocess.DEVNULL)
    command = [BUILD / "acl_overhead", str(arguments.seconds)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = {
        "machine": f"{cpu_name()}, {os.cpu_count()} CPUs",
        "isa": _core.current_isa(),
        "threads": get_num_threads(),
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/acl.py --seconds {arguments.seconds:g}",
        "rows": [json.loads(line) for line in output.splitlines()],
    }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["rows"]:
        print(f"{row['case']:>12}: {row['through_us']:9.1f} us through the C interface, {row['core_us']:9.1f} the core")


if __name__ == "__main__":
    main()
