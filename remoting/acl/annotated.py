"""What do RocketMQ's annotations say that a request needs? One row a request code.

Read from the classes of 5.5.0 (``RocketMQAction`` of a header, ``RocketMQResource`` of its fields;
``tests/interop/java/AuthMap.java``). ``name:Type`` is a field, with what separates several in it behind a
slash. A header of type Cluster without a field that is set needs the cluster; one of another type nothing.
"""

from __future__ import annotations

from typing import Final

Field = tuple[str, str, str]
"""Name, type of the resource, what separates several."""

_ROWS: Final = """
10 - Pub topic:Topic
11 - Sub consumerGroup:Group topic:Topic
12 - Sub,Get topic:Topic
14 - Get consumerGroup:Group topic:Topic
15 - Sub consumerGroup:Group topic:Topic
17 - Create topic:Topic
18 - Create
21 Topic List
29 - Get topic:Topic
30 - Get topic:Topic
31 - Get topic:Topic
32 - Get topic:Topic
33 - Get topic:Topic
34 Group Pub,Sub
35 - Pub,Sub consumerGroup:Group
36 - Sub group:Group originTopic:Topic
37 - Pub topic:Topic
38 - Sub consumerGroup:Group
39 - Pub topic:Topic
40 - Sub consumerGroup:Group
41 - Sub
42 - Sub
100 Cluster Update
101 Cluster Get
102 Cluster Update
103 Cluster Update clusterName:Cluster
104 Cluster Update clusterName:Cluster
105 Cluster Get
201 Group Get
202 - Get topic:Topic
203 - Get consumerGroup:Group
204 Cluster Get
205 Cluster Update
207 - Delete groupName:Group
208 - Get consumerGroup:Group topic:Topic topicList:Topic/;
215 - Delete topic:Topic
216 Cluster Update clusterName:Cluster
217 Cluster Update
219 Cluster Get
222 - Update group:Group topic:Topic
223 - Get topic:Topic group:Group
224 Topic List
300 - Get topic:Topic
303 - Get topic:Topic group:Group
307 - Get consumerGroup:Group
308 - Get filterGroups:Group/, compareGroup:Group topic:Topic
309 - Sub consumerGroup:Group topic:Topic
310 - Pub b:Topic
314 - Update destGroup:Group topic:Topic
315 Cluster Get
317 Cluster Get
321 - Get topic:Topic consumerGroup:Group
322 Cluster Get clusterName:Cluster
323 - Update topic:Topic
326 - Sub producerGroup:Group topic:Topic
327 Cluster Update
328 Cluster Get
343 - Get group:Group
345 - Get group:Group topic:Topic
351 - Get topic:Topic
352 - Get group:Group
353 - Update group:Group topic:Topic
354 - Get topic:Topic
355 Cluster Get
370 - Pub topic:Topic
901 - Get clusterName:Cluster
902 Cluster Update
903 Cluster Update brokerClusterName:Cluster
904 Cluster Update clusterName:Cluster
905 Cluster Update
906 Cluster Update
908 Cluster Update
1001 Cluster Update
1002 Cluster Update clusterName:Cluster
1003 Cluster Update clusterName:Cluster
1004 Cluster Get
1008 Cluster Update
1011 Cluster Update clusterName:Cluster
1012 Cluster Get clusterName:Cluster
1013 Cluster Update clusterName:Cluster
3001 Cluster Update
3002 Cluster Update
3003 Cluster Update
3004 Cluster Get
3005 Cluster Get
3006 Cluster Update
3007 Cluster Update
3008 Cluster Update
3009 Cluster Get
3010 Cluster Get
200050 - Sub consumerGroup:Group topic:Topic
200051 - Sub consumerGroup:Group topic:Topic
200052 - Sub topic:Topic consumerGroup:Group
200053 - Sub consumerGroup:Group topic:Topic
200054 - Sub consumerGroup:Group topic:Topic
200055 - Get consumerGroup:Group topic:Topic
200073 - Sub consumerGroup:Group
"""


def _parsed() -> dict[int, tuple[str, tuple[str, ...], tuple[Field, ...]]]:
    found = {}
    for row in _ROWS.split("\n"):
        if row:
            code, kind, actions, *fields = row.split(" ")
            found[int(code)] = (
                "" if kind == "-" else kind,
                tuple(actions.split(",")),
                tuple(map(_field, fields)),
            )
    return found


def _field(text: str) -> Field:
    name, _, rest = text.partition(":")
    kind, _, splitter = rest.partition("/")
    return name, kind, splitter


ANNOTATED: Final = _parsed()
"""Request code -> type of the header, actions, fields."""
