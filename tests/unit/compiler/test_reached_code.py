"""Edits that change what a function returns change its BuildID, however the code is reached.

Each case is run before and after the edit, as builds run it: the results show that the edit
matters.
"""

from __future__ import annotations

import csv
import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import compiled

from persist_assets.core.python_modules import name_of
from persist_assets.engine.project_modules import modules_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "from persist_assets import table\n"
T = "CREATE TABLE t (a BIGINT) USING parquet LOCATION 't';\n"
Files = dict[str, str]


@pytest.fixture(autouse=True)
def _libraries() -> Iterator[None]:
    """Undo what the modules of a test change in libraries."""
    limit, types = csv.field_size_limit(), dict(mimetypes.types_map)
    yield
    csv.field_size_limit(limit)
    mimetypes.types_map.clear()
    mimetypes.types_map.update(types)


def built(files: Files, name: str = "f", path: str = "sources/d.py") -> tuple[str, Any]:
    """Return the BuildID of a function, and its result."""
    texts = {
        p.removeprefix("sources/") if p.startswith("sources/") else f"/{p}": text
        for p, text in files.items()
    }
    project = compiled({"raw.sql": T, **texts})
    assert not project.errors, [str(p) for p in project.errors]
    source = project.by_id[f"{name}@{path}"]
    assert source.function is not None
    module = modules_of(source.function, Path("/nowhere")).load_file(path)
    return source.build_id, getattr(module, name)(None)


def own(value: str, head: str = "", body: str = "") -> str:
    """Return the text of a file with a source that returns a value."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}{head}@table\ndef f(t):\n{lines}    return {value}\n"


N = "N = @\n"
REGISTRY = """\
ALL = []
def declare(x):
    ALL.append(x)
    return ValueError
def plug(x):
    ALL.append(x)
    return lambda function: function
class Log:
    def __lshift__(self, other): ALL.append(other)
LOG = Log()
"""
LISTED = {"pkg/reg.py": REGISTRY, "sources/d.py": own("list(pkg.reg.ALL)", "import h, pkg.reg\n")}
"""A registry that imports of `h` change."""

PACKAGES: dict[str, Files] = {
    "argument": {
        "sources/d.py": own("use(pkg)", "import pkg.sub\ndef use(p): return p.sub.N\n"),
        "pkg/__init__.py": "",
    },
    "variable": {"sources/d.py": own("p.sub.N", "import pkg.sub\n", "p = pkg"), "pkg/__init__.py": ""},
    "module variable": {
        "sources/d.py": own("P.sub.N", "import pkg.sub\nP = pkg\n"),
        "pkg/__init__.py": "",
    },
    "getattr": {
        "sources/d.py": own("getattr(pkg, 'sub').N", "import pkg.sub\n"),
        "pkg/__init__.py": "",
    },
    "attrgetter": {
        "sources/d.py": own("operator.attrgetter('sub.N')(pkg)", "import operator, pkg.sub\n"),
        "pkg/__init__.py": "",
    },
    "a directory": {"sources/d.py": own("getattr(pkg, 'sub').N", "import pkg.sub\n")},
    "a global of the package": {
        "sources/d.py": own("get()", "import pkg.sub\nfrom pkg import get\n"),
        "pkg/__init__.py": "def get(): return sub.N\n",
    },
}  # fmt: skip

CASES: dict[str, Files] = {
    **{f"package: {name}": {**files, "pkg/sub.py": N} for name, files in PACKAGES.items()},
    "src: relative import of a file": {
        "sources/d.py": own("g()", "from src.lib import g\n"),
        "src/lib.py": "from .rates import N\ndef g(): return N\n",
        "src/rates.py": N,
    },
    "src: relative import of the package": {
        "sources/d.py": own("g()", "from src import g\n"),
        "src/__init__.py": "from .lib import g\n",
        "src/lib.py": "def g(): return @\n",
    },
    "src: one file by two names": {
        "sources/d.py": own(
            "lib.g and result", "import lib\nimport src.lib\n", "result = src.lib.g()"
        ),
        "src/lib.py": "def g():\n    from .rates import N\n    return N\n",
        "src/rates.py": N,
    },
    "text: pandas query": {
        "sources/d.py": own(
            "pd.DataFrame({'a': [1, 2, 3]}).query('a > @LIMIT').a.tolist()".replace("@", "\0"),
            "import pandas as pd\nLIMIT = @\n",
        )
    },
    "text: pandas eval": {
        "sources/d.py": own(
            "pd.eval(TEXT).tolist()",
            "import pandas as pd\nTEXT = 'A + 1'\nA = pd.Series([@])\n",
        )
    },
    "text: duckdb": {
        "sources/d.py": own(
            "duckdb.connect().sql('SELECT sum(a) FROM frame').fetchall()",
            "import duckdb\nimport pandas as pd\nframe = pd.DataFrame({'a': [@]})\n",
        )
    },
    "docstring of a function": {"sources/d.py": own("q.__doc__", 'def q():\n    """@"""\n')},
    "docstring of a class": {"sources/d.py": own("Q.__doc__", 'class Q:\n    """@"""\n')},
    "docstring of a module": {"sources/d.py": '"""@"""\n' + own("__doc__")},
    "docstring by getattr": {
        "sources/d.py": own("getattr(q, '__doc__')", 'def q():\n    """@"""\n')
    },
    "docstring by another name": {
        "sources/d.py": own("doc(q)", 'from inspect import getdoc as doc\ndef q():\n    """@"""\n')
    },
    "import: a call in a directory": {**LISTED, "h.py": "import pkg.reg\nX = pkg.reg.declare(@)\n"},
    "import: a decorator in a directory": {
        **LISTED,
        "h.py": "import pkg.reg\n@pkg.reg.plug(@)\ndef g(): pass\n",
    },
    "import: the directory itself": {
        **LISTED,
        "h.py": "import pkg\nimport more\nX = pkg.reg.declare(@)\n",
        "more.py": "import pkg.reg\n",
    },
    "import: an annotation": {**LISTED, "h.py": "from pkg.reg import ALL\nx: ALL.append(@) = 1\n"},
    "import: an annotation of a parameter": {
        **LISTED,
        "h.py": "from pkg.reg import ALL\ndef g(x: ALL.append(@)): pass\n",
    },
    "import: a handled exception": {
        **LISTED,
        "h.py": "from pkg.reg import declare\ntry:\n    X = 1 / 0\n"
        "except (declare(@), ZeroDivisionError):\n    X = 2\n",
    },
    "import: an operator": {**LISTED, "h.py": "from pkg.reg import LOG\nX = LOG << @\n"},
    "import: a subscript": {
        "sources/d.py": own("dict(D)", "import h\nfrom lib import D\n"),
        "lib.py": "import collections\nD = collections.defaultdict(list)\n",
        "h.py": "from lib import D\nX = D[@]\n",
    },
    "import: a setting of a library": {
        "sources/d.py": own("csv.field_size_limit()", "import csv, h\n"),
        "h.py": "import csv\nX = csv.field_size_limit(@)\n",
    },
    "import: a call whose result is dropped": {
        "sources/d.py": own("mimetypes.types_map['.persist']", "import mimetypes, h\n"),
        "h.py": "import mimetypes, operator\n"
        "_ = operator.ior(mimetypes.types_map, {'.persist': '@'})\n",
    },
    "classes: subclasses": {
        "sources/d.py": own(
            "[c.v for c in Formatter.__subclasses__() if hasattr(c, 'v')][-1]",
            "import h\nfrom string import Formatter\n",
        ),
        "h.py": "import string\nclass A(string.Formatter):\n    v = @\n",
    },
    "classes: annotations": {
        "sources/d.py": own(
            "typing.get_type_hints(g)",
            "import typing\nKinds = {1: int, 2: str}\nKind = Kinds[@]\ndef g(x: 'Kind'): pass\n",
        )
    },
    "types: an own constant": {
        "sources/d.py": own("N", "TYPE_CHECKING = True\nif TYPE_CHECKING:\n    N = @\n")
    },
    "types: a setting": {
        "sources/d.py": own("N", "import h\nif h.TYPE_CHECKING:\n    N = @\n"),
        "h.py": "TYPE_CHECKING = True\n",
    },
}


def edited(files: Files, value: str) -> Files:
    return {p: text.replace("@table", "\1").replace("@pkg", "\2").replace("@", value)
            .replace("\1", "@table").replace("\2", "@pkg").replace("\0", "@")
            for p, text in files.items()}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_edit_that_changes_the_result_changes_the_build_id(case: str) -> None:
    before_id, before = built(edited(CASES[case], "1"))
    after_id, after = built(edited(CASES[case], "2"))
    assert before != after
    assert before_id != after_id


def test_a_module_that_is_missing_and_an_empty_one_differ() -> None:
    files = {
        "sources/d.py": own("N", "from h import N\n"),
        "h.py": "try:\n    import extra\n    N = 1\nexcept ImportError:\n    N = 2\n",
    }
    before_id, before = built(files)
    after_id, after = built({**files, "extra.py": ""})
    assert (before, after) == (2, 1)
    assert before_id != after_id


@pytest.mark.parametrize(
    "value",
    [
        "Path(__file__).stem",
        "__name__.rpartition('.')[2]",
        "SHOP",
        "Own.__module__.rpartition('.')[2]",
        "Path(globals()['__file__']).stem",
        "Path((lambda: 0).__code__.co_filename).stem",
        "Path(inspect.currentframe().f_code.co_filename).stem",
    ],
)
def test_functions_that_read_their_path_share_no_table(value: str) -> None:
    head = "import inspect\nfrom pathlib import Path\nSHOP = Path(__file__).stem\nclass Own: pass\n"
    results = []
    for name in ("berlin", "paris"):
        path = f"sources/{name}.py"
        results.append(built({path: own(value, head)}, path=path))
    (berlin_id, berlin), (paris_id, paris) = results
    assert (berlin, paris) == ("berlin", "paris")
    assert berlin_id != paris_id


@pytest.mark.parametrize(
    "head",
    [
        "import logging\nlog = logging.getLogger(__name__)\n",
        "from logging import getLogger\nlog = getLogger(__name__)\n",
        "log = 1\nif __name__ == '__main__':\n    print(__file__)\n",
    ],
)
def test_loggers_and_scripts_do_not_bind_a_function_to_its_path(head: str) -> None:
    ids = {
        built({f"sources/{name}.py": own("log and 1", head)}, path=f"sources/{name}.py")[0]
        for name in ("berlin", "paris")
    }
    assert len(ids) == 1


def unaffected(before: Files, after: Files) -> None:
    """Check that an edit that cannot affect the result keeps the BuildID."""
    assert built(before)[0] == built(after)[0]


def test_modules_of_a_package_that_a_function_does_not_use_do_not_count() -> None:
    files = {
        "sources/d.py": own("pkg.sub.N", "import pkg.sub, pkg.other\n"),
        "pkg/__init__.py": "",
        "pkg/sub.py": "N = 1\n",
        "pkg/other.py": "M = 1\n",
    }
    unaffected(files, {**files, "pkg/other.py": "M = 2\n"})


def test_words_of_spark_queries_and_parameters_are_no_globals() -> None:
    head = "from pyspark.sql import SparkSession\nday = {}\nimport duckdb\n"
    use = (
        "def g(session: SparkSession, spark): session.sql('SELECT day'), spark.sql('SELECT day')\n"
        "def h(day): return duckdb.sql('SELECT * FROM day')\n"
    )
    unaffected(
        {"sources/d.py": own("g and 1", head.format(1) + use)},
        {"sources/d.py": own("g and 1", head.format(2) + use)},
    )
    unaffected(
        {"sources/d.py": own("h and 1", head.format(1) + use)},
        {"sources/d.py": own("h and 1", head.format(2) + use)},
    )


@pytest.mark.parametrize(
    "statement",
    [
        "ROOT = Path('a') / 'b'",
        "from lib import RATES\nTWICE = RATES['x'] * 2",
        "from lib import Kind\ndef g(x: list[Kind]): return x",
        "x: list[int] = []",
        "def g(x: dict[str, int]) -> int | None: return x",
        "from __future__ import annotations\nx: print(1) = 2",
        "try:\n    X = 1\nexcept (ValueError, KeyError):\n    X = 2",
    ],
)
def test_ordinary_definitions_have_no_side_effects(statement: str) -> None:
    files = {
        "sources/d.py": own("h.N", "import h\n"),
        "lib.py": "RATES = {'x': 1}\ndef kind(): return int\nKind = kind()\n",
        "h.py": f"{statement}\nfrom pathlib import Path\nN = 1\nunused = 1\n",
    }
    if "Path(" in statement:
        files["h.py"] = f"from pathlib import Path\n{statement}\nN = 1\nunused = 1\n"
    unaffected(files, {**files, "h.py": files["h.py"].replace("unused = 1", "unused = 2")})


@pytest.mark.parametrize(
    "head",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    X = {}\n",
        "import typing as t\nif t.TYPE_CHECKING:\n    X = {}\n",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    X = {}\n",
        "try:\n    from typing import TYPE_CHECKING\nexcept ImportError:\n    TYPE_CHECKING = False\n"
        "if TYPE_CHECKING:\n    X = {}\n",
    ],
)
def test_code_for_type_checkers_does_not_count(head: str) -> None:
    head += "for i in (): pass\n"  # everything else counts
    unaffected(
        {"sources/d.py": own("abs(1)", head.format(1))},
        {"sources/d.py": own("abs(1)", head.format(2))},
    )


def test_a_package_in_src_has_the_name_it_is_imported_by() -> None:
    assert name_of("src/__init__.py") == "src"
    assert name_of("src/shop/__init__.py") == "shop"
