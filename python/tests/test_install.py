"""`pip install .` into a fresh environment, and calls of the installed module on arrays of the standard library."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = """
import array, hpcdl, hpcdl.files, pathlib
x, y = array.array("f", [0, 0, 0, 0]), array.array("f", [1, 2, 3, 4])
assert hpcdl.softmax(x, out=y) is y and list(y) == [0.25] * 4, y
folder = pathlib.Path(hpcdl.__file__).parent
assert (folder / "_hpcdl.pyi").exists() and (folder / "py.typed").exists(), list(folder.iterdir())
try:
    hpcdl.softmax(x)
except ModuleNotFoundError as e:
    assert "numpy" in str(e)
print(hpcdl.__version__, hpcdl.instruction_set(), folder)
"""


class Install(unittest.TestCase):
    def test_pip_install(self):
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        env.setdefault("HPCDL_CUDA", "0")  # compiling GPU kernels takes minutes; HPCDL_CUDA=1 includes them
        folder = tempfile.mkdtemp(prefix="hpcdl-pip-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        run = lambda *command: subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        made = run(sys.executable, "-m", "venv", "venv")
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        python = f"{folder}/venv/bin/python"
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--retries", "1", "--timeout", "30"]
        tools = run(*pip, "-q", "scikit-build-core", "nanobind")
        if tools.returncode:
            print("skipped: the package index is out of reach\n" + tools.stderr[-500:])
            sys.exit(77)
        # The compiler by the name that the build of the tests uses, because ccache distinguishes c++ and g++.
        compiler = os.environ.get("HPCDL_CXX", "c++")
        installed = run(*pip, str(ROOT), "--config-settings", f"cmake.define.CMAKE_CXX_COMPILER={compiler}")
        self.assertEqual(installed.returncode, 0, (installed.stdout + installed.stderr)[-6000:])
        used = run(python, "-c", CHECK)
        self.assertEqual(used.returncode, 0, used.stdout + used.stderr)
        self.assertIn(folder, used.stdout)


if __name__ == "__main__":
    unittest.main()
