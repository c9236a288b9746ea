"""Files that a broken kernel or a careless script leaves: a verdict, or one line and exit code 2."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from command import run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("seed", range(20))
def test_an_output_that_was_never_written(capsys, dtype, seed):
    generator = np.random.default_rng(seed)
    golden = generator.standard_normal((2, 3, 17)) * (generator.random((2, 3, 17)) < 0.6)
    np.save("golden.npy", golden.astype(dtype))
    np.save("got.npy", np.zeros((2, 3, 17), dtype))
    code, _, err = run(capsys, "compare", "got.npy", "golden.npy", "--json", "verdict.json")
    assert (code, err) == (1, "")
    text = json.loads(Path("verdict.json").read_text())
    assert '"CosineSimilarity": 0.0' in json.dumps(text)


@pytest.mark.parametrize("pair", [(2.0, -2.0), (1e308, -1e308), (-5e-324, 1e308)])
@pytest.mark.parametrize("standard", ["ulp", "community"])
def test_a_sign_that_flipped_in_float64(capsys, pair, standard):
    golden = np.full((2, 2, 50), pair[0])
    got = golden.copy()
    got[0, 1, 7] = pair[1]
    np.save("golden.npy", golden)
    np.save("got.npy", got)
    code, out, _ = run(capsys, "compare", "got.npy", "golden.npy", "--standard", standard)
    assert code == 1
    assert "(0, 1, 7)" in out


def test_a_member_that_is_no_array(capsys):
    np.savez("golden.npz", dx=np.ones((2, 2, 3), np.float32))
    with zipfile.ZipFile("got.npz", "w") as archive:
        archive.writestr("dx.npy", b"hello")
    code, out, err = run(capsys, "compare", "got.npz", "golden.npz")
    assert code == 2
    assert out == ""
    assert "GOT" in err
    assert "dx is no array" in err
    assert err.count("\n") == 1


def test_names_with_markup(capsys):
    np.save("[bold]x[.npy", np.ones((2, 2, 3), np.float32))
    code, out, _ = run(capsys, "compare", "[bold]x[.npy", "[bold]x[.npy")
    assert code == 0
    assert "[bold]x[" in out
