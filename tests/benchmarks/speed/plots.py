# SPDX-License-Identifier: BSL-1.0
"""Bars and lines as SVG, by hand: the docs need no tool that users would have to install."""
from xml.sax.saxutils import escape

COLOURS = ["#1f5fa8", "#d9822b", "#3c8d40", "#8a5aa8", "#b03a48", "#6b6b6b", "#2a9d9d", "#a08a20"]
WIDTH = 760


def text(x, y, content, anchor="start", size=13):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">' \
           f"{escape(content)}</text>"


def page(height, title, unit, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        text(16, 26, title, size=16), text(16, 46, unit, size=12), *parts, "</svg>"]) + "\n"


def bars(title, unit, groups, names):
    """`groups` is {label: {name: value}}: for each name a bar of each group."""
    left, top, thick = 230, 64, 15
    names = [name for name in names if any(name in values for values in groups.values())]
    most = max(values[name] for values in groups.values() for name in names if name in values)
    scale = (WIDTH - left - 70) / most
    parts, y = [], top
    for name in names:
        parts.append(text(left - 8, y + thick * len(groups) / 2 + 4, name, "end"))
        for colour, values in zip(COLOURS, groups.values()):
            if name in values:
                width = values[name] * scale
                parts += [f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{thick - 2}" '
                          f'fill="{colour}"/>',
                          text(left + width + 5, y + thick - 4, f"{values[name]:.3g}", size=11)]
            y += thick
        y += 9
    for n, label in enumerate(groups):
        x = WIDTH - 90 * (len(groups) - n)
        parts += [f'<rect x="{x}" y="16" width="11" height="11" fill="{COLOURS[n]}"/>',
                  text(x + 16, 26, label, size=12)]
    return page(y + 8, title, unit, parts)


def lines(title, unit, axis, ticks, series):
    """`series` is {name: a value or None for each tick}."""
    left, top, right, bottom, height = 50, 66, WIDTH - 250, 330, 372
    most = max(value for values in series.values() for value in values if value is not None) * 1.05
    parts = []

    def at(n):
        return left + 20 + n * (right - left - 40) / (len(ticks) - 1)

    def level(value):
        return bottom - value / most * (bottom - top)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if most / s <= 8)
    for value in range(0, int(most) + 1, step):
        y = level(value)
        parts += [f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
                  text(left - 6, y + 4, str(value), "end", 11)]
    parts += [text(at(n), bottom + 18, tick, "middle", 12) for n, tick in enumerate(ticks)]
    parts.append(text((left + right) / 2, bottom + 36, axis, "middle", 12))
    for n, (name, values) in enumerate(series.items()):
        colour = COLOURS[n % len(COLOURS)]
        points = [(at(i), level(v)) for i, v in enumerate(values) if v is not None]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = top + 6 + n * 20
        parts += [f'<rect x="{right + 16}" y="{y - 9}" width="11" height="11" fill="{colour}"/>',
                  text(right + 33, y + 1, name, size=12)]
    return page(height, title, unit, parts)
