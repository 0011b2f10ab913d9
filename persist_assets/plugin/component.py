"""A Dagster component: `defs.yaml` instead of `definitions.py`.

type: persist_assets.PersistedSourcesComponent
attributes:
  path: sources
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from dagster.components.scaffold.scaffold import Scaffolder, scaffold_with
from pydantic import BaseModel, Field

from persist_assets.operations.starting import begin
from persist_assets.plugin.assets import load_sources
from persist_assets.plugin.translator import AssetTranslator

if TYPE_CHECKING:
    from dagster.components.scaffold.scaffold import ScaffoldRequest


class _Scaffold(BaseModel):
    path: str | None = Field(
        default=None,
        description=(
            "The sources directory of an existing project, relative to the directory of defs.yaml. "
            "Without it, a new project with sample data is created."
        ),
    )


class SourcesScaffolder(Scaffolder[_Scaffold]):
    """Writes `defs.yaml`, and unless it is for existing sources, a first project beside it."""

    @classmethod
    def get_scaffold_params(cls) -> type[_Scaffold]:
        """Return the options of ``dg scaffold defs``."""
        return _Scaffold

    def scaffold(self, request: ScaffoldRequest[_Scaffold]) -> None:
        """Write the files."""
        path = request.params.path
        if path is None:
            begin(request.target_path, ("sql",), {}, is_component=True)
        dg.scaffold_component(request, {"path": path or "sources"})


@scaffold_with(SourcesScaffolder)
class PersistedSourcesComponent(dg.Component, dg.Model, dg.Resolvable):
    """The persisted sources of a project as Dagster assets.

    Subclasses can override `translator`, which translates sources to asset specs.
    """

    path: str = Field(
        default="sources",
        description="The sources directory, relative to the directory of defs.yaml.",
    )
    gc_cron: str = Field(
        default="0 3 * * *",
        description="The cron schedule of the job that deletes unneeded data. Off by default.",
    )
    keep_going: bool | None = Field(
        default=None,
        description="Leave out files that have errors, with a warning, instead of failing.",
    )

    def translator(self) -> type[AssetTranslator]:
        """Return the class that translates sources to asset specs."""
        return AssetTranslator

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions that `load_sources` makes.

        Raises
        ------
        SettingsError
            The directory does not exist, or `persist.toml` is invalid.
        SourcesError
            Sources have errors; the exception lists all of them.
        """
        return load_sources(
            context.path / self.path,
            translator=self.translator(),
            gc_cron=self.gc_cron,
            keep_going=self.keep_going,
        )
