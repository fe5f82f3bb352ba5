# Bytes of a log -> a block: what a slave, and recovery, dispatch from.

cdef class Parser:
    """Reads records as ``store.files.record.DispatchParser`` does, as long as they are plain. ``scheduled``:
    the topic whose messages have no tags code of their own."""

    cdef dict routes
    cdef object kind
    cdef bytes scheduled

    def __init__(self, object kind, str scheduled):
        self.routes = {}
        self.kind = kind
        self.scheduled = scheduled.encode()

    def parse(self, object buffer, int64_t offset, int64_t limit):
        """The plain records at the start of ``buffer`` (its first byte is physical ``offset``) that end at or
        below ``limit``, as a block, and the offset behind the last."""
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            return self._parse(<const uint8_t *>view.buf, view.len, offset, limit)
        finally:
            PyBuffer_Release(&view)

    cdef object _parse(self, const uint8_t *base, Py_ssize_t n, int64_t offset, int64_t limit):
        cdef Py_ssize_t at = 0, reach
        cdef int64_t size, body
        cdef const uint8_t *p
        cdef const uint8_t *text
        cdef Py_ssize_t topic_bytes, text_bytes
        cdef Props props
        cdef Route route = None
        cdef Entry *e
        cdef Block block = Block(self.kind)
        reach = n if limit - offset > n else <Py_ssize_t>(limit - offset)
        while reach - at > FIXED_BYTES + 3:
            p = base + at
            size = <int32_t>ld32(p)
            body = <int32_t>ld32(p + BODY_SIZE_AT)
            if (ld32(p + MAGIC_AT) != MAGIC_V1 or <int64_t>ld64(p + OFFSET_AT) != offset + at
                    or ld32(p + SYS_FLAG_AT) & (PREPARED | HOSTS_V6 | INNER_BATCH)
                    or body < 0 or size > reach - at or FIXED_BYTES + body >= size - 3):
                break
            topic_bytes = p[FIXED_BYTES + body]
            text_bytes = <Py_ssize_t>size - FIXED_BYTES - <Py_ssize_t>body - 3 - topic_bytes
            if topic_bytes == 0 or text_bytes < 0 or text_bytes > 0x7FFF:
                break
            text = p + size - text_bytes
            if ld16(text - 2) != text_bytes:
                break
            if (route is None or len(route.stored) != topic_bytes + 1
                    or memcmp(PyBytes_AS_STRING(route.stored), text - 3 - topic_bytes, topic_bytes + 1) != 0):
                route = self._route(PyBytes_FromStringAndSize(<char *>(text - 2 - topic_bytes), topic_bytes))
                if route is None:
                    break
            scan(text, text_bytes, &props)
            if not (is_utf8(props.unique.p, props.unique.n) and is_utf8(props.tags.p, props.tags.n)
                    and is_utf8(props.keys.p, props.keys.n)):
                break
            e = block.add(route, props.unique, props.keys)
            e.offset = offset + at
            e.size = <int32_t>size
            e.queue_id = <int32_t>ld32(p + QUEUE_AT)
            e.queue_offset = <int64_t>ld64(p + QUEUE_OFFSET_AT)
            e.stored = <int64_t>ld64(p + STORED_AT)
            e.sys_flag = <int32_t>ld32(p + SYS_FLAG_AT)
            e.tag = <int32_t>java_hash(0, props.tags.p, props.tags.n)
            at += <Py_ssize_t>size
        return block, offset + at

    cdef Route _route(self, bytes name):
        """None: the topic is not for here."""
        found = self.routes.get(name)
        if found is None:
            if name == self.scheduled or not is_utf8(<const uint8_t *>PyBytes_AS_STRING(name), len(name)):
                return None
            if len(self.routes) > 10000:
                self.routes.clear()
            found = self.routes[name] = Route(name.decode(), 0)
        return <Route>found
