"""The project modules that functions see, on the driver and on workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import compiled

from persist_assets.engine.project_modules import modules_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {
    "/rates.py": "N = 1\ndef twice():\n    from shop.prices import P\n    return 2 * P\n",
    "/src/shop/__init__.py": "NAME = 'shop'\n",
    "/src/shop/prices.py": "P = 20\n",
    "/src/shop/tax/__init__.py": "from ..prices import P\n",
    "/src/shop/tax/vat.py": "V = 7\n",
    "more.py": "M = 5\n",
    "raw.sql": "CREATE TABLE t (a BIGINT) USING parquet LOCATION 't';\n",
}
BODIES = {
    "import rates\nreturn rates.N": 1,
    "import rates as r, json\nreturn json.dumps(r.N)": "1",
    "import json as j, shop.prices\nreturn j.dumps([shop.prices.P, shop.NAME])": '[20, "shop"]',
    "import shop.tax.vat as vat\nreturn vat.V": 7,
    "from rates import N as n, twice\nreturn [n, twice()]": [1, 40],
    "from shop.tax import P, vat\nreturn P + vat.V": 27,
    "from .more import M\nreturn M": 5,
    "from . import more\nreturn more.M": 5,
    "def g():\n    from rates import N\n    return N\nreturn g()": 1,
    "class C:\n    from rates import N\nreturn C().N": 1,
    "try:\n    import absent\nexcept ImportError:\n    return [0]": [0],
    "try:\n    from rates import absent\nexcept ImportError:\n    return [0]": [0],
    "global rates\nimport rates\nreturn rates.N": 1,
    "import rates\nrates.N += 1\nimport rates as r\nreturn r.N": 2,
    "from sources import more\nfrom sources.more import M\nreturn more.M is M": True,
}


@pytest.fixture(scope="module")
def functions() -> Iterator[list[Any]]:
    """One function for each of `BODIES`."""
    text = "from persist_assets import table\n"
    for number, body in enumerate(BODIES):
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        text += f"@table\ndef f{number}(t):\n{lines}"
    project = compiled({**FILES, "d.py": text})
    assert not project.errors, [str(p) for p in project.errors]
    sources = [project.by_id[f"f{n}@sources/d.py"].function for n in range(len(BODIES))]
    modules = [modules_of(f, Path("/nowhere")).load_file(f.path) for f in sources if f]
    yield [getattr(m, f"f{n}") for n, m in enumerate(modules)]


def test_functions_import_project_modules(functions: list[Any]) -> None:
    assert [f(None) for f in functions] == [*BODIES.values()]


@pytest.mark.proves("W30", "V21")
def test_functions_import_project_modules_on_workers(functions: list[Any], tmp_path: Path) -> None:
    """A worker may find other modules of the same names, and has neither project nor package."""
    from pyspark import cloudpickle

    for path in ("rates.py", "more.py"):
        (tmp_path / path).write_text("N = M = 100\n")
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(functions))
    script = (
        "import json, pickle, sys\n"
        "sys.path += sys.argv[1:]\n"
        "functions = pickle.load(open('sent', 'rb'))\n"
        "results = [f(None) for f in functions]\n"
        "print(json.dumps([results, 'persist_assets' in sys.modules]))\n"
    )
    spark = str(Path(sys.modules["pyspark"].__file__ or "").parents[1])
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path), spark],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == [[*BODIES.values()], False]


def test_a_long_chain_of_elif_is_run() -> None:
    chain = "".join(f"    elif t == {n}:\n        from rates import N\n" for n in range(900))
    text = "from persist_assets import table\n@table\n"
    text += f"def f(t):\n    if t == -1:\n        N = 2\n{chain}    return N\n"
    project = compiled({**FILES, "d.py": text})
    function = project.by_id["f@sources/d.py"].function
    assert function is not None
    module = modules_of(function, Path("/nowhere")).load_file(function.path)
    assert (module.f(-1), module.f(800)) == (2, 1)
