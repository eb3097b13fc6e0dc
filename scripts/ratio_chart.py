"""The picture of the README: how many times faster than the best peer each case is, as one SVG."""

import html
import math

WIDTH, ROW, LEFT, RIGHT, TOP = 940, 22, 300, 130, 74
LOW, HIGH = 0.5, 32.0  # range of the logarithmic axis
PEERS = {"torch.compile": "torch.compile", "torch, oneDNN packed, fused": "oneDNN, packed and fused"}
AHEAD, LEVEL, BEHIND = "ahead", "level", "behind"  # classes; within 3 % counts as a tie
LIGHT = {"page": "#ffffff", "ink": "#1e293b", "soft": "#475569", "grid": "#cbd5e1", "one": "#0f172a", "ahead": "#0f766e", "level": "#64748b", "behind": "#b45309"}
DARK = {"page": "#0f1520", "ink": "#e6ebf2", "soft": "#a3b0c2", "grid": "#2b3648", "one": "#e6ebf2", "ahead": "#2dd4bf", "level": "#94a3b8", "behind": "#f0a04b"}


def rules(face):
    """One rule for each class. CSS variables would be shorter, but only browsers know them; other viewers draw black."""
    fills = {name: face[name] for name in ("page", "ink", "soft", "ahead", "level", "behind")} | {"inside": face["page"]}
    strokes = {"grid": face["grid"], "one": face["one"], "whisker": face["one"], "cut": face["page"]}
    return "".join(f".{name}{{fill:{c}}}" for name, c in fills.items()) + "".join(f".{name}{{stroke:{c}}}" for name, c in strokes.items())


STYLE = f"""<style>
{rules(LIGHT)}
.one{{stroke-width:1.4}}.whisker{{stroke-opacity:.55;fill:none}}.cut{{stroke-width:3;fill:none}}
@media(prefers-color-scheme:dark){{{rules(DARK)}}}
</style>"""


def x_of(ratio):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)


def colour(ratio):
    return AHEAD if ratio > 1.03 else BEHIND if ratio < 0.97 else LEVEL


def bars(results):
    """(group, name, ratio, peer) of all comparisons."""
    for case, row in results.get("gpt2_step", {}).get("rows", {}).items():
        for name, side in row["sides"].items():
            if "ratio" in side and "untuned" not in name:
                dtype = "bf16" if name.endswith("bf16") else "f32"
                tokens = "{} x {} tokens".format(*(word[1:] for word in case.split()))
                yield "training step, GPT-2 124M", f"{tokens}, {dtype}", side["ratio"], name.removesuffix("-bf16").replace("torch", "PyTorch").replace("-clip", ", clipping")
    for row in results.get("ops", {}).get("rows", {}).values():
        peer = PEERS.get(row["best_peer"], row["best_peer"].replace("torch", "PyTorch", 1).replace(",", "", 1))
        yield "kernels against the best way PyTorch has", f"{row['op']} {row['shape']} {row['dtype']}", row["ratio"], peer
    for case, row in results.get("int4", {}).get("rows", {}).items():
        yield "INT4 decoding against ggml", case, row["ratios"]["ggml, same bits"], "Q4_0 repacked"
    warm = results.get("host", {}).get("rows", {}).get("load.warm")
    if warm:
        yield "opening a model", "498 MB, warm, mapped", warm["ratio"], "read into memory"


def text(x, y, content, **attributes):
    attributes = {"font-size": 12, "class": "ink", **attributes}
    return f'<text x="{x:.1f}" y="{y:.1f}" ' + " ".join(f'{k}="{v}"' for k, v in attributes.items()) + f">{html.escape(content)}</text>"


def bar(y, name, ratio, peer):
    one, end, middle = x_of(1), x_of(ratio["median"]), y + ROW / 2
    yield f'<rect x="{min(one, end):.1f}" y="{y + 4}" width="{max(abs(end - one), 1.5):.1f}" height="{ROW - 8}" rx="2" class="{colour(ratio["median"])}">'
    yield f'<title>{html.escape(name)}: {ratio["median"]:.2f} ({ratio["min"]:.2f} to {ratio["max"]:.2f}) times {html.escape(peer)}</title></rect>'
    lo, hi = x_of(ratio["min"]), x_of(ratio["max"])
    yield f'<path d="M{lo:.1f} {middle}H{hi:.1f}M{lo:.1f} {middle - 3}v6M{hi:.1f} {middle - 3}v6" class="whisker"/>'
    yield text(LEFT - 10, middle + 4, name, **{"text-anchor": "end"})
    label = f"{ratio['median']:.2f}× {peer}"
    if ratio["median"] < HIGH:
        yield text(max(end, hi, one) + 8, middle + 4, label, **{"font-size": 11, "class": "soft"})
    else:  # the bar ends at the end of the axis: two strokes through it and its label show that
        yield f'<path d="M{end - 12:.1f} {y + 2}l-5 {ROW - 4}M{end - 5:.1f} {y + 2}l-5 {ROW - 4}" class="cut"/>'
        yield text(end - 24, middle + 4, f"{label}, bar cut off at {HIGH:g}×", **{"font-size": 11, "class": "inside", "text-anchor": "end"})


def svg(results, machine):
    rows, parts, y = list(bars(results)), [], TOP
    group = None
    for g, name, ratio, peer in rows:
        if g != group:
            group, y = g, y + 12
            parts.append(text(LEFT - 10, y + 14, g, **{"text-anchor": "end", "font-weight": 600}))
            y += ROW
        parts += bar(y, name, ratio, peer)
        y += ROW
    grid = []
    for tick in (0.5, 1, 2, 4, 8, 16, 32):
        strong = tick == 1
        grid.append(f'<path d="M{x_of(tick):.1f} {TOP}V{y + 4}" class="{"one" if strong else "grid"}"/>')
        grid.append(text(x_of(tick), TOP - 6, f"{tick:g}×", **{"text-anchor": "middle", "class": "soft"}))
    head = [text(20, 26, "Times faster than each peer at its best", **{"font-size": 17, "font-weight": 600}),
            text(20, 46, f"{machine['cpu']}, {machine['threads']} threads, {machine['date']}. Medians of interleaved rounds; whiskers: slowest and fastest round.",
                 **{"class": "soft"})]
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 16}" font-family="system-ui, sans-serif">',
                      STYLE, '<rect width="100%" height="100%" class="page"/>', *head, *grid, *parts, "</svg>"]) + "\n"
