"""What MkDocs does besides to the pages of docs/, which people also read in the repository.

Pages link to files outside docs/, such as tests. The site has a copy of each of them, as text; a
directory is named instead. A link to nothing is left as it is, so that the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^]]*)\]\((\.\./[^)#]+)\)")
ROW = re.compile(r"^\|.*", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page as MkDocs shall read it."""
    docs = Path(config.docs_dir)
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        uri = posixpath.normpath(posixpath.join(folder, target))
        source = docs / uri
        path = uri.removeprefix("../")
        if path == uri or path.startswith("../") or not source.exists():
            return match[0]
        if source.is_dir():
            return f"{text} (`{path}`)"
        copy = f"files/{path}.txt"
        if copy not in files.src_uris:
            files.append(File.generated(config, copy, abs_src_path=str(source)))
        return f"[{text}]({posixpath.relpath(copy, folder or '.')})"

    def cells(text: str) -> str:
        # In a cell, GitHub wants `a\|b` for a code span that Python-Markdown takes as it is.
        return CODE.sub(lambda code: code[0].replace(r"\|", "|"), text)

    parts = FENCE.split(markdown)
    parts[::2] = [ROW.sub(lambda row: cells(row[0]), LINK.sub(link, part)) for part in parts[::2]]
    return "".join(parts)
