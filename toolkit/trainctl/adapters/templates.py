"""Files rendered from templates/: text with holes, where a missing name is an error."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, StrictUndefined

from trainctl.base import tables
from trainctl.base.assets import asset


def render(template: str, /, **values: object) -> str:
    """The template `templates/TEMPLATE` with its holes filled; `| toml` writes a value as TOML."""
    environment = Environment(
        undefined=StrictUndefined,
        autoescape=False,  # the results are no HTML; each hole is quoted for what it stands in
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = tables.format_value
    return environment.from_string(asset(f"templates/{template}")).render(values)


def render_run_toml(
    name: str,
    command: str | Sequence[str],
    *,
    nodes: int = 1,
    spares: int = 0,
    ranks_per_node: int = 1,
) -> str:
    """A commented run.toml for a new run, every key in it with its meaning and default."""
    return render(
        "run.toml.j2",
        name=name,
        command=command if isinstance(command, str) else list(command),
        nodes=nodes,
        spares=spares,
        ranks_per_node=ranks_per_node,
    )
