"""The charts of the page for a paper: SVG and PNG, drawn from the rows of its CSV files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from gpaco.files import write_atomic
from gpaco.metrics import GROUPS
from gpaco.pages.evidence import Facts
from gpaco.pages.tables import tables

WIDTH, HEIGHT, PIXELS_PER_INCH = 420, 260, 200


def draw(data: Facts, folder: Path) -> list[Path]:
    """Write each chart to the folder as .svg and .png; those without rows are left out."""
    import vl_convert

    written = []
    for name, chart in charts(data).items():
        spec = chart.configure_view(continuousWidth=WIDTH, continuousHeight=HEIGHT).to_json()
        for suffix, content in (
            (".svg", vl_convert.vegalite_to_svg(spec).encode()),
            (".png", vl_convert.vegalite_to_png(spec, ppi=PIXELS_PER_INCH)),
        ):
            path = folder / f"{name}{suffix}"
            write_atomic(path, content)
            written.append(path)
    return written


def charts(data: Facts) -> dict[str, Any]:
    """The charts that there are rows for, by name."""
    rows = {
        name: [dict(zip(header, row, strict=True)) for row in found] for name, (header, found) in tables(data).items()
    }
    return {name: make(rows[source]) for name, (source, make) in CHARTS.items() if rows[source]}


def _accuracy(rows: list[Facts]) -> Any:
    import altair as alt

    seen = [row for row in rows if row["recall"] is not None and row["train"] > 0]
    base = alt.Chart(alt.Data(values=seen)).encode(x=_x("train:Q", "training images of the class", "log"), color=_run())
    points = base.mark_point(filled=True, size=30).encode(y=_percent("recall:Q", "accuracy"), shape=_shape())
    return base.mark_rule(opacity=0.4).encode(y="low:Q", y2="high:Q") + points


def _flows(rows: list[Facts]) -> Any:
    import altair as alt

    long = [
        {
            "run": row["run"],
            "from": row["from"],
            "to": f"taken for {name}",
            "share": row[f"to_{name}"] / row["images"],
        }
        for row in rows
        if row["images"]
        for name in GROUPS
    ]
    return (
        alt.Chart(alt.Data(values=long))
        .mark_bar()
        .encode(
            x=_percent("share:Q", "share of the group's images", axis=alt.X),
            y=alt.Y("from:N", sort=list(GROUPS), title=None),
            color=alt.Color("to:N", title=None),
            row=alt.Row("run:N", title=None),
        )
    )


def _whatif(rows: list[Facts]) -> Any:
    import altair as alt

    long = [
        {
            "run": row["run"],
            "group": name,
            "at": row["weight"] * (-1 if row["towards"] == "train" else 1),
            "accuracy": row[name],
        }
        for row in rows
        for name in GROUPS
        if row[name] is not None
    ]
    return (
        alt.Chart(alt.Data(values=long))
        .mark_line()
        .encode(
            x=_x("at:Q", "expected at test time: training (-1), equal (0), reversed (1)"),
            y=_percent("accuracy:Q", "accuracy"),
            strokeDash=alt.StrokeDash("group:N", sort=list(GROUPS), title=None),
            color=_run(),
        )
    )


def _calibration(rows: list[Facts]) -> Any:
    import altair as alt

    some = [row for row in rows if row["group"] != "all"]
    lines = (
        alt.Chart(alt.Data(values=some))
        .mark_line(point=True)
        .encode(
            x=_percent("confidence:Q", "confidence", axis=alt.X),
            y=_percent("accuracy:Q", "accuracy"),
            strokeDash=alt.StrokeDash("group:N", sort=list(GROUPS), title=None),
            color=_run(),
        )
    )
    diagonal = alt.Chart(alt.Data(values=[{"p": 0}, {"p": 1}])).mark_line(color="gray", strokeDash=[2, 2])
    return diagonal.encode(x="p:Q", y="p:Q") + lines


def _gradients(rows: list[Facts]) -> Any:
    import altair as alt

    some = [row for row in rows if row["at_centre"] and row["train"] > 0]
    base = alt.Chart(alt.Data(values=some)).encode(
        x=_x("train:Q", "training images of the class", "log"),
        y=alt.Y("at_centre:Q", title="gradient norm at the centre", scale=alt.Scale(type="log")),
        color=_run(),
    )
    line = base.transform_regression("train", "at_centre", method="pow", groupby=["run"]).mark_line()
    return base.mark_point(filled=True).encode(shape=_shape()) + line


def _optimum(rows: list[Facts]) -> Any:
    import altair as alt

    long = [
        {"run": row["run"], "shown": row["shown"], "what": f"{what}, {how}", "how": how, "p": row[key]}
        for row in rows
        for key, what, how in (
            ("centre", "own centre", "asked"),
            ("each_positive", "each positive", "asked"),
            ("supcon", "each positive of SupCon", "asked"),
            ("measured_centre", "own centre", "measured"),
            ("measured_each_positive", "each positive", "measured"),
        )
        if row[key] and row["shown"] > 0
    ]
    base = alt.Chart(alt.Data(values=long)).encode(
        x=_x("shown:Q", "training images of the class", "log"),
        y=alt.Y("p:Q", title="probability", scale=alt.Scale(type="log")),
        color=alt.Color("what:N", title=None),
    )
    asked = base.transform_filter("datum.how == 'asked'").mark_line()
    measured = base.transform_filter("datum.how == 'measured'").mark_point()
    return alt.layer(asked, measured).facet(row=alt.Row("run:N", title=None)) if _several(rows) else asked + measured


def _extra_loss(rows: list[Facts]) -> Any:
    import altair as alt

    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(clip=True)
        .encode(
            x=_x("p_sup:Q", "probability of all centres together"),
            y=alt.Y("extra_loss:Q", title="extra loss"),
            color=_run(),
        )
    )


def _corruptions(rows: list[Facts]) -> Any:
    import altair as alt

    some = [
        row | {"corruption": row["corruption"].replace("_", " ") + (" (extra)" if row["kind"] == "extra" else "")}
        for row in rows
        if row["kind"] and row["severity"] != "mean" and row["error"] is not None
    ]
    names = list(dict.fromkeys(row["corruption"] for row in some))
    return (
        alt.Chart(alt.Data(values=some))
        .mark_rect()
        .encode(
            x=alt.X("severity:O", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("corruption:N", sort=names, title=None),
            color=alt.Color(
                "error:Q",
                title="error",
                legend=alt.Legend(format="%"),
                scale=alt.Scale(scheme="blues", domainMin=0),
            ),
            column=alt.Column("group:N", sort=["all", *GROUPS], title=None),
            row=alt.Row("run:N", title=None),
        )
        .properties(width=WIDTH / 4)
    )


CHARTS: dict[str, tuple[str, Callable[[list[Facts]], Any]]] = {
    "accuracy_by_frequency": ("classes", _accuracy),
    "flows": ("flows", _flows),
    "whatif": ("whatif", _whatif),
    "calibration": ("calibration", _calibration),
    "gradients": ("gradients", _gradients),
    "optimum": ("optimum", _optimum),
    "extra_loss": ("extra_loss", _extra_loss),
    "corruptions": ("corruptions", _corruptions),
}


def _several(rows: list[Facts]) -> bool:
    return len({row["run"] for row in rows}) > 1


def _x(field: str, title: str, kind: Literal["linear", "log"] = "linear") -> Any:
    import altair as alt

    return alt.X(field, title=title, scale=alt.Scale(type=kind, nice=False, padding=8))


def _percent(field: str, title: str, axis: Any = None) -> Any:
    import altair as alt

    return (axis or alt.Y)(field, title=title, axis=alt.Axis(format="%"))


def _run() -> Any:
    import altair as alt

    return alt.Color("run:N", title=None)


def _shape() -> Any:
    import altair as alt

    return alt.Shape("run:N", title=None)
