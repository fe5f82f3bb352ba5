"""The promise of the load programs: what they send is what they say, and what they count is there."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from bench.growth import label, points, table
from bench.load import DIALECTS, ManyTopics, Work
from bench.plot import lines_svg
from remoting.codec import decode
from remoting.headers import SendHeader


def test_sends_go_to_all_topics_in_turn_and_to_each_queue_of_them() -> None:
    for dialect in DIALECTS:
        template = ManyTopics("Many", 3, Work(100, dialect=dialect))
        seen = []
        for number in range(24):
            command = decode(bytes(template.fill(number, number % 4)))
            header = SendHeader.parse(command.code, command.ext)
            seen.append((header.topic, header.queue_id))
        assert set(seen) == {(f"Many{topic:05d}", queue) for topic in range(3) for queue in range(4)}
        assert seen[:12] == seen[12:]


def test_growth_has_a_table_and_a_plot_of_every_value() -> None:
    rows = [
        {
            "series": point.series,
            "value": point.value,
            "cpu_us": 3.0,
            "spread": [2.0, 4.0],
            "ratio": 1.0 + number,
            "cpu_us_a_kib": 3.0,
        }
        for series in points([1, 4])
        for number, point in enumerate(series)
    ]
    page = table(rows, {})
    plot = ElementTree.fromstring(lines_svg("t", rows, label, 1.3))
    words = [found.text for found in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.0", "0.5", "1.0"} <= set(words)
    named = lines_svg("t", rows, label, 1.0, lambda ratio: f"{ratio * 300:.0f} MiB")
    assert all(f">{mib} MiB<" in named for mib in (0, 150, 300))
    for row in rows:
        assert label(row) in words
        assert f"| {row['series']} | {label(row)} |" in page
    assert "topics 10,000 (3.00)" in page
