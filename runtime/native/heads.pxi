# Numbers -> the header of the answer to a pull that found messages; pulls that are known -> the whole answers.

cdef enum:
    PULL_NUMBERS = 5
    PULL_HEAD_MAX = 1024
    MAX_INT32 = 0x7fffffff
    NUMBER_BYTES_MAX = 24  # with the length before it
    BORN_V6_BYTES = 12
    # Of a Standing:
    STANDING_MODEL = 3
    STANDING_CONFIG = 5
    STANDING_SAME = 8  # fields that say the same of all queues of a topic
    STANDING_FIRST = 8
    STANDING_MOST = 9
    STANDING_COMMITS = 10
    STANDING_FIELDS = 11


cdef class PullHeads:
    """Heads of answers, frames up to their bodies, from what the codec writes around the numbers of one
    (``broker.requests.consumers.pull_heads``): each number stands behind a part, and one is left."""

    cdef tuple json, binary

    def __init__(self, tuple json, tuple binary):
        """``json``: around next, least and greatest offset, the topic's and the group's flags, and the opaque;
        ``binary``: before and behind the opaque, up to the ext fields' length, and around the others."""
        for parts, count in ((json, PULL_NUMBERS + 2), (binary, PULL_NUMBERS + 3)):
            if (len(parts) != count or not all([type(part) is bytes for part in parts])
                    or sum([len(part) for part in parts]) > PULL_HEAD_MAX - 8 - NUMBER_BYTES_MAX * (PULL_NUMBERS + 2)):
                raise ValueError("these are not the parts of an answer")
        self.json = json
        self.binary = binary

    def head(self, bint binary, int32_t opaque, int64_t next_offset, int64_t least, int64_t most,
             int64_t topic_flag, int64_t group_flag, int32_t body_bytes):
        """Of one answer. Raises OverflowError for a number that is none of those in a record or a table."""
        cdef uint8_t[PULL_HEAD_MAX] frame
        cdef int64_t[PULL_NUMBERS] numbers
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] = next_offset, least, most, topic_flag, group_flag
        return PyBytes_FromStringAndSize(<char *>frame, self.put_head(frame, binary, opaque, numbers, body_bytes))

    def answers(self, Py_ssize_t limit, tuple known, rules, buffer, Py_ssize_t start, Py_ssize_t end, int most,
                int64_t room):
        """The whole answers to known pulls that ``buffer[start:end]`` begins with: (where these end, the first
        one's request and header, the frames, what is given), or None. Nothing else is done. Raises OverflowError
        for a flag that is none of those in a table.

        ``limit``: no frame is longer; ``known``: what is known, and ``pull_at``'s marks. ``rules``: of the
        first one's request and header, what holds for all that have the same words but for the queue: the
        codes wanted, the flags of topic and group, the Maps, the queues by topic and number, and the
        log; None: the ordinary way has to look. ``most`` are answered, and none once the frames have more
        than ``room`` bytes. Given: bytes of the frames; the queues with their commit offsets, and with their next
        ones; whether any of the former is beyond its next one; records, their bytes, and when the first of each
        pull was stored.
        """
        cdef dict pulls = known[0]
        cdef tuple marks = known[1], found = None
        cdef int64_t[3] values
        cdef int64_t[PULL_NUMBERS] numbers
        cdef Chosen chosen
        cdef Py_ssize_t stop, head_bytes
        cdef bint binary, guarded = False, beyond = False
        cdef bytes frame
        cdef int64_t size = 0, records = 0, records_bytes = 0
        cdef list frames = [], commits = [], reached = [], stored = []
        first_request = first_header = None
        while len(frames) < most and size <= room:
            pull = _known_at(buffer, start, end, limit, pulls, marks, values, &stop, &binary)
            if pull is None:
                break
            request, header = pull
            standing = header.standing
            if not isinstance(standing, tuple) or PyTuple_GET_SIZE(standing) != STANDING_FIELDS:
                break
            if found is None:
                found = rules(request, header)
                if found is None:
                    break
                first_request, first_header = request, header
                numbers[3], numbers[4] = found[1], found[2]
                guarded = keelmq_guard_stands()
            elif not _same_words(first_request, first_header, request, header):
                break
            numbers[1] = standing[STANDING_FIRST]
            if values[0] < numbers[1]:
                break
            queue = (<dict>found[4]).get((header.topic, header.queue_id))
            if queue is None:
                break
            frame = self.answer(found[3], queue, found[5], values[0], standing[STANDING_MOST], found[0], binary,
                                <int32_t>values[2], numbers, guarded, &chosen, &head_bytes)
            if frame is None:
                break
            frames.append(frame)
            commits.append((header.queue_id, values[1]))
            reached.append((header.queue_id, chosen.following))
            stored.append(_stored_ms(<const uint8_t *>PyBytes_AS_STRING(frame) + head_bytes))
            beyond |= values[1] > chosen.following
            records += chosen.count
            records_bytes += chosen.total
            size += PyBytes_GET_SIZE(frame)
            start = stop
        if not frames:
            return None
        given = size, commits, reached, beyond, records, records_bytes, stored
        return start, first_request, first_header, frames, given

    cdef bytes answer(self, Maps maps, queue, log, int64_t at, tuple most, codes, bint binary, int32_t opaque,
                      int64_t *numbers, bint guarded, Chosen *found, Py_ssize_t *head_bytes):
        """The whole answer of what ``read_plain`` gives. None: something is not plain.

        ``most``: entries looked at, records and bytes; ``numbers``: as ``put_head`` writes them; there are
        the flags and, as the least offset, the one below which the consumer is told of none. ``guarded``: see
        ``Maps.lend``.
        """
        cdef uint8_t[PULL_HEAD_MAX] head
        cdef bytes frame
        cdef int64_t low = queue.min_offset, high = queue.max_offset
        if not low <= at < high or not _look(found, maps, queue, log, at, most[0], most[1], most[2], codes):
            return None
        if found.total > MAX_INT32 - PULL_HEAD_MAX:
            return None
        numbers[0], numbers[2] = found.following, high
        if low > numbers[1]:
            numbers[1] = low
        head_bytes[0] = self.put_head(head, binary, opaque, numbers, <int32_t>found.total)
        frame = PyBytes_FromStringAndSize(NULL, head_bytes[0] + <Py_ssize_t>found.total)
        memcpy(PyBytes_AS_STRING(frame), head, head_bytes[0])
        if not _copy(found, maps, <uint8_t *>PyBytes_AS_STRING(frame) + head_bytes[0], guarded):
            return None
        return frame

    cdef Py_ssize_t put_head(self, uint8_t *frame, bint binary, int32_t opaque, const int64_t *numbers,
                             int32_t body_bytes):
        """Write a head; how long it is."""
        cdef uint8_t *to = frame + 8
        cdef uint8_t *ext
        cdef int k, digits
        if binary:
            to = put(to, self.binary[0])
            st32(to, <uint32_t>opaque)
            ext = put(to + 4, self.binary[1])
            to = ext + 4
            for k in range(PULL_NUMBERS):
                to = put(to, self.binary[k + 2])
                digits = decimal(to + 4, numbers[k])
                st32(to, digits)
                to += 4 + digits
            to = put(to, self.binary[PULL_NUMBERS + 2])
            st32(ext, <uint32_t>(to - ext - 4))
        else:
            for k in range(PULL_NUMBERS):
                to = put(to, self.json[k])
                to += decimal(to, numbers[k])
            to = put(to, self.json[PULL_NUMBERS])
            to += decimal(to, opaque)
            to = put(to, self.json[PULL_NUMBERS + 1])
        st32(frame, <uint32_t>(to - frame - 4 + body_bytes))
        st32(frame + 4, <uint32_t>((1 << 24 if binary else 0) | (to - frame - 8)))
        return to - frame


cdef bint _same_words(request, header, other_request, other_header) except -1:
    """Whether what the rules found of a pull holds for another one, whose numbers and queue may differ."""
    cdef Py_ssize_t k
    one, other = header.standing, other_header.standing
    if PyTuple_GET_SIZE(one) != STANDING_FIELDS or PyTuple_GET_SIZE(other) != STANDING_FIELDS:
        return False
    for k in range(STANDING_SAME):
        if one[k] is not other[k] and (k not in (STANDING_MODEL, STANDING_CONFIG) or one[k] != other[k]):
            return False
    return (one[STANDING_COMMITS] == other[STANDING_COMMITS] and header.topic == other_header.topic
            and header.group == other_header.group and request.code == other_request.code
            and request.flag == other_request.flag)


cdef int64_t _stored_ms(const uint8_t *record) noexcept:
    """When a record was stored, which has OVERHEAD_BYTES at least."""
    return <int64_t>ld64(record + STORED_AT + (BORN_V6_BYTES if record[SYS_FLAG_AT + 3] & 0x10 else 0))
