"""dbt's templates, rendered where that is certain: without its adapters, packages and warehouse.

Only what stands in the project counts: `ref`, `source`, `var`, `config`, Jinja's own statements,
and macros of the project that call nothing else. Templates run in Jinja's sandbox.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MARK = "persist_table_{}_"
"""Stands for a table in a rendered text."""
_MACROS = re.compile(r"\{%-?\s*macro\s+(\w+)")
_OTHER_BLOCKS = re.compile(
    r"\{%-?\s*(test|materialization|data_test)\s+(\w+).*?\{%-?\s*end\1\s*-?%\}", re.S
)
_SNAPSHOT = re.compile(r"\{%-?\s*snapshot\s+(\w+)\s*-?%\}(.*?)\{%-?\s*endsnapshot\s*-?%\}", re.S)
_DOCS = re.compile(r"\{%-?\s*docs\s+(\w+)\s*-?%\}(.*?)\{%-?\s*enddocs\s*-?%\}", re.S)


_PARENTS = {"redshift": "postgres", "databricks": "spark"}
"""The adapter whose macros an adapter has, too."""


_OF_DBT = frozenset(
    """
    adapter api as_bool as_native as_number as_text builtins cloud codegen column_name compiled_code
    connection_name context database database_schemas dbt dbt_date dbt_expectations dbt_utils
    dbt_version diff_of_two_dicts dispatch elementary env_var exceptions execute flags fromjson
    fromyaml graph invocation_args_dict invocation_id load_result local_md5 metric metrics model
    modules on_run_end_context post_hooks pre_hooks print project_name results run_query
    run_started_at schema schemas selected_resources set set_strict sql sql_now statement
    store_raw_result store_result submit_python_job target thread_id this tojson toyaml
    try_or_compiler_error validation write zip zip_strict
    """.split()
)
"""Names that templates have in dbt, also those of common packages."""


class UncertainError(Exception):
    """A template cannot be rendered with certainty.

    Attributes
    ----------
    line
        The line of the template.
    """

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


class _ReturnError(Exception):
    """A macro returns a value, as `return` of dbt does."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered template.

    Attributes
    ----------
    tables
        What each mark stands for: ``("ref", "orders")`` or ``("source", "shop", "orders")``.
    config
        The arguments of its calls of `config`.
    is_incremental
        It asks whether its table is there; it was rendered as if it were not.
    """

    text: str
    tables: Mapping[str, tuple[str, ...]]
    config: Mapping[str, Any]
    is_incremental: bool


@dataclass
class Templates:
    """The templates of a dbt project.

    Attributes
    ----------
    variables
        The values of variables that `dbt_project.yml` states.
    macros
        Texts of macros by path.
    docs
        Texts of documentation by name.
    project
        The name of the project: models of others are not in it.
    """

    adapter: str
    variables: Mapping[str, Any]
    project: str = ""
    macros: dict[str, str] = field(default_factory=dict)
    docs: dict[str, str] = field(default_factory=dict)
    _compiled: Any = None

    def render(self, text: str) -> Rendered:
        """Return a rendered template.

        Raises
        ------
        UncertainError
            It needs what only dbt has.
        """
        tables: dict[str, tuple[str, ...]] = {}
        config: dict[str, Any] = {}
        incremental_calls: list[bool] = []

        def mark(*name: str) -> str:
            key = _MARK.format(len(tables))
            tables[key] = name
            return key

        def ref(*names: Any, **version: Any) -> str:
            if version or not 1 <= len(names) <= 2:
                raise UncertainError("versions of models have no counterpart")
            if len(names) == 2 and names[0] != self.project:
                raise UncertainError(f"`{names[1]}` is of the package `{names[0]}`")
            return mark("ref", str(names[-1]))

        def incremental() -> bool:
            incremental_calls.append(True)
            return False

        names = {
            "ref": ref,
            "source": lambda source, table: mark("source", str(source), str(table)),
            "config": _Config(config),
            "is_incremental": incremental,
            "this": _This(),
        }
        rendered = self._run(text, names)
        return Rendered(rendered, tables, config, bool(incremental_calls))

    def value(self, text: str) -> Any:
        """Return the value of a text of YAML that may be a template.

        Raises
        ------
        UncertainError
            It needs what only dbt has.
        """
        if "{{" not in text and "{%" not in text:
            return text
        rendered = self._run(text, {"doc": self._doc}).strip()
        return {"true": True, "false": False}.get(rendered.lower(), rendered)

    def _doc(self, *names: str) -> str:
        if names[-1] not in self.docs:
            raise UncertainError(f"there is no docs block `{names[-1]}`")
        return self.docs[names[-1]]

    def _variable(self, name: str, *default: Any, **named: Any) -> Any:
        if name in self.variables:
            return self.variables[name]
        if default or "default" in named:
            return (*default, named.get("default"))[0]
        raise UncertainError(f"the variable `{name}` has no value in dbt_project.yml")

    def _run(self, text: str, names: Mapping[str, Any]) -> str:
        import jinja2

        try:
            environment, macros = self._compile()
            scope: dict[str, Any] = {**environment.globals, "log": _silent, "return": _return}
            scope |= {"var": self._variable, "adapter": _Adapter(self.adapter, scope), **names}
            for names_of, compiled in macros:
                # They share the scope itself, so each finds macros that are defined later.
                module = compiled.make_module(scope, shared=True)
                scope |= {n: _returning(getattr(module, n)) for n in names_of if hasattr(module, n)}
            return environment.from_string(text).render(scope)
        except UncertainError as error:
            raise UncertainError(str(error), _line(error)) from error
        except jinja2.TemplateSyntaxError as error:
            raise UncertainError(f"Jinja: {error.message}", error.lineno) from error
        except jinja2.UndefinedError as error:
            raise UncertainError(_only_dbt(str(error.message)), _line(error)) from error
        except Exception as error:  # whatever a template can do wrong
            raise UncertainError(f"Jinja: {type(error).__name__}: {error}", _line(error)) from error

    def _compile(self) -> tuple[Any, list[tuple[list[str], Any]]]:
        """Return the sandbox, and the names and the templates of the macros that it can read."""
        if self._compiled is None:
            import jinja2
            from jinja2.sandbox import SandboxedEnvironment

            environment = SandboxedEnvironment(
                undefined=jinja2.StrictUndefined, extensions=["jinja2.ext.do"]
            )
            tests, filters = environment.tests, environment.filters
            tests |= {name: _certain(test) for name, test in tests.items()}
            filters |= {name: _certain(filters[name]) for name in ("default", "d")}
            macros: list[tuple[list[str], Any]] = []
            for text in self.macros.values():
                plain, _ = without_blocks(text)
                with suppress(jinja2.TemplateSyntaxError):  # models with its macros are not carried
                    macros.append((_MACROS.findall(plain), environment.from_string(plain)))
            self._compiled = environment, macros
        return self._compiled


def without_blocks(text: str) -> tuple[str, list[tuple[str, str, int]]]:
    """Return a text without blocks that only dbt knows, and their kinds, names and lines."""
    blocks = [(m[1], m[2], text[: m.start()].count("\n") + 1) for m in _OTHER_BLOCKS.finditer(text)]
    return _OTHER_BLOCKS.sub(lambda m: "\n" * m[0].count("\n"), text), blocks


def snapshots_in(text: str) -> list[tuple[str, str, int]]:
    """Return the names, the contents and the lines of the snapshots in a text."""
    return [(m[1], m[2], text[: m.start()].count("\n") + 1) for m in _SNAPSHOT.finditer(text)]


def docs_in(text: str) -> dict[str, str]:
    """Return the blocks of documentation in a text."""
    return {m[1]: m[2].strip() for m in _DOCS.finditer(text)}


def _only_dbt(message: str) -> str:
    name = re.match(r"'([\w.]+)' is undefined", message)
    shown = f"`{name[1]}`" if name else message
    return f"{shown} is known only to dbt"


def _certain(use: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test or filter that does not take names of dbt for undefined ones."""
    import jinja2

    @wraps(use)
    def checked(*values: Any, **named: Any) -> Any:
        for value in values:
            is_undefined = isinstance(value, jinja2.Undefined)
            name = getattr(value, "_undefined_name", None) if is_undefined else None
            if name in _OF_DBT:
                raise UncertainError(f"`{name}` is known only to dbt")
        return use(*values, **named)

    return checked


def _return(value: Any = None) -> Any:
    raise _ReturnError(value)


def _silent(*_: Any, **__: Any) -> str:
    return ""


def _returning(macro: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any, **named: Any) -> Any:
        try:
            return macro(*values, **named)
        except _ReturnError as returned:
            return returned.args[0]

    return call


def _line(error: BaseException) -> int:
    """Return the line of a template in which an error arose."""
    line, trace = getattr(error, "line", 1), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            return trace.tb_lineno
        trace = trace.tb_next
    return line


class _Config:
    """`config(…)` of a model: it writes nothing."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __call__(self, *values: Any, **named: Any) -> str:
        for value in values:
            self._values.update(value)
        self._values.update(named)
        return ""


class _This:
    """The model's own table, which no source may read."""

    def __str__(self) -> str:
        raise UncertainError("it reads its own table (`this`)")


class _Adapter:
    """`adapter.dispatch` finds macros of the project."""

    def __init__(self, name: str, scope: Mapping[str, Any]) -> None:
        self._name, self._scope = name, scope

    def dispatch(self, macro: str, *_: Any, **__: Any) -> Any:
        """Return the macro for the adapter, or the default one."""
        for prefix in (self._name, _PARENTS.get(self._name), "default"):
            if f"{prefix}__{macro}" in self._scope:
                return self._scope[f"{prefix}__{macro}"]
        raise UncertainError(f"there is no macro `default__{macro}` in the project")
