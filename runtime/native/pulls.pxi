# Queue entries -> the records they name, in one piece: what a pull is answered with.

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    """
    void *memmem(const void *, size_t, const void *, size_t) nogil

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *buf, size_t count, int64_t offset)

cdef enum:
    GATHER_MAX = 1024  # records of one answer
    GAP_MAX = 8 << 10  # a read of its own costs as much as so many bytes more


cdef struct Chosen:
    # Records of one answer: which, and where they are read from.
    int64_t[GATHER_MAX] places  # in the file of ``descriptor``
    int32_t[GATHER_MAX] sizes
    int64_t[GATHER_MAX] offsets
    int count
    int64_t total  # bytes
    int64_t following  # the queue offset behind the last entry looked at
    int32_t queue_id
    int descriptor
    int64_t start  # of its file
    int64_t low  # no earlier byte of the log may be read


def read_plain(Maps maps, queue, log, int64_t at, int64_t looked_at, int count_max, int64_t bytes_max, codes):
    """What a pull of a queue is given from queue offset ``at`` on, as ``store.flow.reading`` finds it: (records,
    how many, the queue offset behind the last entry looked at).

    ``maps``: of this log alone; ``queue`` and ``log``: a ConsumeQueue and the CommitLog; ``looked_at``: so many
    entries at most; ``codes``: the tags codes wanted, None for all. None: something is not plain, and Python's
    way has to look.
    """
    cdef Chosen found
    cdef bytes records
    if not _look(&found, maps, queue, log, at, looked_at, count_max, bytes_max, codes):
        return None
    records = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>found.total)
    if not _copy(&found, maps, <uint8_t *>PyBytes_AS_STRING(records), False):
        return None
    return records, found.count, found.following


cdef bint _look(Chosen *found, Maps maps, queue, log, int64_t at, int64_t looked_at, int count_max,
                int64_t bytes_max, codes) except -1:
    """Choose what ``read_plain`` is to give; False: something is not plain."""
    cdef uint8_t[ENTRY_BYTES * GATHER_MAX] room
    cdef int64_t end = queue.max_offset, written = queue.written, count = looked_at
    cdef int64_t start, size, physical, low
    cdef int descriptor
    cdef bint right
    found.queue_id = queue.queue_id
    if count > end - at:
        count = end - at
    if at < 0 or not 0 < count <= GATHER_MAX:
        return False
    if at >= written:
        buffer = queue.buffer
        if not isinstance(buffer, bytearray) or at - written + count > len(buffer) // ENTRY_BYTES:
            return False
        # A copy: what follows runs Python, and lets go of the GIL; the buffer may move, and must not be held.
        memcpy(room, PyByteArray_AS_STRING(buffer) + (at - written) * ENTRY_BYTES, <size_t>count * ENTRY_BYTES)
    else:
        descriptor = place(queue._dir, at * ENTRY_BYTES, &start, &size, &low, None)
        if descriptor < 0 or count > written - at or at * ENTRY_BYTES - start + count * ENTRY_BYTES > size:
            return False  # they go on in the next file, or in memory
        with nogil:  # a page that is not in memory stops this thread alone
            right = _read(descriptor, room, at * ENTRY_BYTES - start, count * ENTRY_BYTES)
        if not right:
            return False
    physical = <int64_t>ld64(room)
    descriptor = place(log._dir, physical, &start, &size, &low, maps)
    if descriptor < 0:
        return False
    end, size = log.end, start + size
    found.descriptor, found.start, found.low = descriptor, start, low if low > start else start
    return _choose(found, room, <Py_ssize_t>count, at, codes is None or at + count == <int64_t>queue.max_offset,
                   size if size < end else end, count_max, bytes_max, codes)


cdef int place(directory, int64_t at, int64_t *start, int64_t *size, int64_t *first, Maps maps) except -2:
    """The descriptor of the file of a SegmentDir that holds byte ``at``, where that file starts, its size, and
    where the first one starts; -1: none does, or its file is not open, or has no descriptor.

    ``maps`` hear when it is closed."""
    cdef list segments = directory.segments
    cdef int64_t number
    if not segments:
        return -1
    first[0] = segments[0].start
    size[0] = directory.segment_bytes
    if at < first[0] or size[0] <= 0:
        return -1
    number = (at - first[0]) // size[0]
    if number >= len(segments):
        return -1
    segment = segments[number]
    start[0] = segment.start
    file = segment.opened
    if file is None or at < start[0]:
        return -1
    descriptor = file.descriptor
    if descriptor is None:
        return -1
    if maps is not None and file.maps is not maps:
        file.maps = maps
    return descriptor


def gather(int descriptor, const uint8_t[::1] entries, int64_t first, bint whole, int32_t queue_id,
           tuple span, int count_max, int64_t bytes_max, object codes):
    """The same of ``entries``, the first of which has queue offset ``first``.

    ``whole``: no entry follows them; ``span``: where the segment of ``descriptor`` starts, and the first and the
    last byte of it that may be read.
    """
    cdef Py_ssize_t n = entries.shape[0] // ENTRY_BYTES
    cdef Chosen found
    cdef bytes records
    found.queue_id, found.descriptor = queue_id, descriptor
    found.start, found.low = span[0], span[1]
    if n == 0 or not _choose(&found, &entries[0], n, first, whole, span[2], count_max, bytes_max, codes):
        return None
    records = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>found.total)
    if not _copy(&found, None, <uint8_t *>PyBytes_AS_STRING(records), False):
        return None
    return records, found.count, found.following


cdef bint _choose(Chosen *found, const uint8_t *entries, Py_ssize_t n, int64_t first, bint whole, int64_t high,
                  int count_max, int64_t bytes_max, object codes) except -1:
    """Which of ``n`` entries are given, whose records lie below ``high``; False: something is not plain."""
    cdef Py_ssize_t i
    cdef const uint8_t *e
    cdef int64_t physical, left = bytes_max
    cdef int32_t size
    cdef bint full = False
    found.count, found.total = 0, 0
    if count_max > GATHER_MAX or found.low < 0:
        return False
    for i in range(n):
        e = entries + i * ENTRY_BYTES
        physical = <int64_t>ld64(e)
        size = <int32_t>ld32(e + 8)
        if physical < found.low or size < OVERHEAD_BYTES or size > high - physical:
            return False
        if codes is not None and <int64_t>ld64(e + 12) not in codes:
            continue
        if found.count and size > left:
            full = True
            n = i
            break
        found.places[found.count] = physical - found.start
        found.sizes[found.count] = size
        found.offsets[found.count] = first + i
        found.count += 1
        left -= size
        found.total += size
        if found.count >= count_max:
            full = True
            n = i + 1
            break
    found.following = first + n
    return found.count > 0 and (full or whole)


cdef bint _copy(const Chosen *found, Maps maps, uint8_t *p, bint guarded) except -1:
    """Put the records at ``p``; False: they are not what their entries name, or cannot be read. ``guarded``: see
    ``Maps.lend``."""
    cdef int i
    cdef bint right, lent = maps is not None and maps.lend(guarded)
    with nogil:
        right = _fetch(found, p, maps, lent)
    if lent:
        maps.give_back()
    if not right:
        return False
    for i in range(found.count):
        if (<int32_t>ld32(p) != found.sizes[i] or <int32_t>ld32(p + QUEUE_AT) != found.queue_id
                or <int64_t>ld64(p + QUEUE_OFFSET_AT) != found.offsets[i]
                or <int64_t>ld64(p + OFFSET_AT) != found.places[i] + found.start):
            return False
        p += found.sizes[i]
    return True


cdef bint _fetch(const Chosen *found, uint8_t *p, Maps maps, bint lent) noexcept nogil:
    """Neighbours in one read; through ``maps`` that are lent also those that are nearly. Whether all bytes
    came."""
    cdef const int64_t *places = found.places
    cdef const int32_t *sizes = found.sizes
    cdef int descriptor = found.descriptor, count = found.count
    cdef int i = 0, j
    cdef int64_t end, total
    cdef bint packed
    while i < count:
        end, total = places[i] + sizes[i], sizes[i]
        packed = True
        j = i + 1
        while j < count:
            if places[j] != end or not packed:
                if (not lent or places[j] < end or places[j] - end > GAP_MAX
                        or places[j] + sizes[j] - places[i] > SPAN_MAX):
                    break
                packed = packed and places[j] == end
            end = places[j] + sizes[j]
            total += sizes[j]
            j += 1
        if packed:
            if not _read(descriptor, p, places[i], total):
                return False
        elif not maps.copy(p, descriptor, places + i, sizes + i, j - i) and not _apart(found, i, j, p, maps):
            return False
        p += total
        i = j
    return True


cdef bint _apart(const Chosen *found, int i, int j, uint8_t *p, Maps maps) noexcept nogil:
    """Records that lie within a span, where it is not mapped, or one of its pages cannot be read."""
    cdef int64_t first = found.places[i]
    cdef const uint8_t *span = maps.aside(found.descriptor, first, found.places[j - 1] + found.sizes[j - 1] - first)
    for i in range(i, j):
        if span != NULL:
            memcpy(p, span + (found.places[i] - first), found.sizes[i])
        elif not _read(found.descriptor, p, found.places[i], found.sizes[i]):
            return False  # what nobody asked for may have been what cannot be read
        p += found.sizes[i]
    return True


cdef bint _read(int descriptor, uint8_t *p, int64_t at, int64_t size) noexcept nogil:
    cdef int64_t got
    while size > 0:
        got = pread(descriptor, p, <size_t>size, at)
        if got <= 0:
            return False
        p += got
        at += got
        size -= got
    return True


cdef enum:
    PULL_EXT_AT = 8 + BINARY_BYTES
    DIGITS_MAX = 18
    OPAQUE_DIGITS_MAX = 9


cdef struct Span:
    Py_ssize_t begin, end


def pull_at(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t limit, dict known, tuple marks):
    """The pull that begins at ``start`` of ``buffer[start:end]``: (where it ends, request, header), which are
    those of ``known`` with the numbers that came; None: the ordinary way is to look.

    ``limit``: no frame is longer; ``marks``: see ``cut_binary`` and ``cut_json``, two and three.
    """
    cdef int64_t[3] values
    cdef Py_ssize_t stop
    cdef bint binary
    found = _known_at(buffer, start, end, limit, known, marks, values, &stop, &binary)
    if found is None:
        return None
    request, header = found
    header.queue_offset, header.commit_offset, request.opaque = values[0], values[1], values[2]
    return stop, request, header


cdef object _known_at(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t limit, dict known, tuple marks,
                      int64_t *values, Py_ssize_t *stop, bint *binary):
    """What is ``known`` of the pull that begins at ``start``, its numbers, and where it ends; None as ``pull_at``."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int64_t length
    cdef uint32_t mark
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= end <= view.len or end - start < 8:
            return None
        p = <const uint8_t *>view.buf + start
        length, mark = <int32_t>ld32(p), ld32(p + 4)
        if length < 4 or length + 4 > limit or length + 4 > end - start or (mark & 0xFFFFFF) != length - 4:
            return None  # it is not whole, has a body, or cannot be
        binary[0] = mark >> 24 == 1
        if binary[0]:
            around = _cut_binary(p, <Py_ssize_t>length + 4, marks[0], marks[1], values)
        elif mark >> 24 == 0:
            around = _cut_json(p, <Py_ssize_t>length + 4, marks[2], marks[3], marks[4], values)
        else:
            return None
    finally:
        PyBuffer_Release(&view)
    stop[0] = start + <Py_ssize_t>length + 4
    return None if around is None else known.get(around)


def cut_binary(bytes frame, bytes offset_mark, bytes commit_mark):
    """What stands around the numbers of a pull with a ROCKETMQ header, and its queue offset, commit offset and
    opaque, as ``broker.requests.consumers.fast_pull`` cuts them; None: the ordinary way is to look."""
    cdef int64_t[3] values
    around = _cut_binary(<const uint8_t *>PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), offset_mark,
                         commit_mark, values)
    return None if around is None else (around, (values[0], values[1], values[2]))


cdef tuple _cut_binary(const uint8_t *p, Py_ssize_t n, bytes offset_mark, bytes commit_mark, int64_t *values):
    cdef Py_ssize_t first
    cdef Py_ssize_t[2] a
    cdef Py_ssize_t[2] b
    if n < PULL_EXT_AT:
        return None
    values[2] = <int32_t>ld32(p + 8 + BINARY_OPAQUE_AT)
    if ld32(p + 8 + BINARY_REMARK_AT) or <int64_t><int32_t>ld32(p + 8 + BINARY_EXT_AT) != n - PULL_EXT_AT or values[2] < 0:
        return None
    if not digits_behind(p, n, offset_mark, &a[0], &b[0], &values[0]):
        return None
    if not digits_behind(p, n, commit_mark, &a[1], &b[1], &values[1]):
        return None
    first = 0 if a[0] < a[1] or (a[0] == a[1] and b[0] <= b[1]) else 1
    if b[first] > a[1 - first]:
        return None
    return (
        PyBytes_FromStringAndSize(<char *>p + 8, 5) + PyBytes_FromStringAndSize(<char *>p + 8 + BINARY_FLAG_AT, 4),
        PyBytes_FromStringAndSize(<char *>p + PULL_EXT_AT, a[first] - PULL_EXT_AT),
        PyBytes_FromStringAndSize(<char *>p + b[first], a[1 - first] - b[first]),
        PyBytes_FromStringAndSize(<char *>p + b[1 - first], n - b[1 - first]),
    )


def cut_json(bytes frame, bytes offset_mark, bytes commit_mark, bytes opaque_mark):
    """The same of a JSON header."""
    cdef int64_t[3] values
    around = _cut_json(<const uint8_t *>PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), offset_mark, commit_mark,
                       opaque_mark, values)
    return None if around is None else (around, (values[0], values[1], values[2]))


cdef tuple _cut_json(const uint8_t *p, Py_ssize_t n, bytes offset_mark, bytes commit_mark, bytes opaque_mark,
                     int64_t *values):
    cdef Span[3] spans
    cdef Span one
    cdef int i, k
    if (not json_digits(p, n, offset_mark, 34, DIGITS_MAX, &spans[0], &values[0])
            or not json_digits(p, n, commit_mark, 34, DIGITS_MAX, &spans[1], &values[1])
            or not json_digits(p, n, opaque_mark, 44, OPAQUE_DIGITS_MAX, &spans[2], &values[2])):
        return None
    if p[spans[2].begin] == 48 and spans[2].end - spans[2].begin > 1:
        return None  # no number of JSON
    for i in range(1, 3):
        k = i
        while k > 0 and spans[k].begin < spans[k - 1].begin:
            one = spans[k]
            spans[k] = spans[k - 1]
            spans[k - 1] = one
            k -= 1
    if spans[0].end > spans[1].begin or spans[1].end > spans[2].begin:
        return None
    return (
        PyBytes_FromStringAndSize(<char *>p + 8, spans[0].begin - 8),
        PyBytes_FromStringAndSize(<char *>p + spans[0].end, spans[1].begin - spans[0].end),
        PyBytes_FromStringAndSize(<char *>p + spans[1].end, spans[2].begin - spans[1].end),
        PyBytes_FromStringAndSize(<char *>p + spans[2].end, n - spans[2].end),
    )


cdef bint json_digits(const uint8_t *p, Py_ssize_t n, bytes mark, int stop, Py_ssize_t most, Span *span,
                      int64_t *value) noexcept:
    """Whether ``mark`` is in the header, and behind it a number that ends before the byte ``stop``."""
    cdef Py_ssize_t mark_bytes = PyBytes_GET_SIZE(mark), at
    if n < 8:
        return False
    cdef const uint8_t *found = <const uint8_t *>memmem(p + 8, n - 8, PyBytes_AS_STRING(mark), mark_bytes)
    if found == NULL:
        return False
    at = found - p + mark_bytes
    span.begin = at
    value[0] = 0
    while at < n and at - span.begin < most and 48 <= p[at] <= 57:
        value[0] = value[0] * 10 + p[at] - 48
        at += 1
    span.end = at
    return at > span.begin and at < n and p[at] == stop


cdef bint digits_behind(const uint8_t *p, Py_ssize_t n, bytes mark, Py_ssize_t *begin, Py_ssize_t *end,
                        int64_t *value) noexcept:
    """Whether ``mark`` is in the ext fields and a number behind it: where its length begins, and it ends."""
    cdef Py_ssize_t mark_bytes = PyBytes_GET_SIZE(mark), at, k
    cdef int64_t size
    cdef const uint8_t *found = <const uint8_t *>memmem(
        p + PULL_EXT_AT, n - PULL_EXT_AT, PyBytes_AS_STRING(mark), mark_bytes)
    if found == NULL:
        return False
    at = found - p + mark_bytes
    if at > n - 4:
        return False
    size = <int32_t>ld32(p + at)
    if not 0 < size <= DIGITS_MAX or size > n - at - 4:
        return False
    value[0] = 0
    for k in range(<Py_ssize_t>size):
        if not 48 <= p[at + 4 + k] <= 57:
            return False
        value[0] = value[0] * 10 + p[at + 4 + k] - 48
    begin[0] = at
    end[0] = at + 4 + <Py_ssize_t>size
    return True
