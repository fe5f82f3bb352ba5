# Numbers -> the header of the answer to a pull that found messages; a queue -> the whole answer.

cdef enum:
    PULL_NUMBERS = 5
    PULL_HEAD_MAX = 1024
    MAX_INT32 = 0x7fffffff
    NUMBER_BYTES_MAX = 24  # with the length before it


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

    def answer(self, tuple files, int64_t at, tuple most, codes, bint binary, int32_t opaque, int64_t first,
               int64_t topic_flag, int64_t group_flag):
        """The whole answer of what ``read_plain`` gives: (frame, bytes of its head, how many records, the next
        offset). None: something is not plain. Raises OverflowError as ``head``.

        ``files``: the Window, queue and log of ``read_plain``; ``most``: entries looked at, records and bytes;
        ``first``: the consumer is told of no lesser offset.
        """
        cdef Window window = files[0]
        cdef Chosen found
        cdef uint8_t[PULL_HEAD_MAX] head
        cdef int64_t[PULL_NUMBERS] numbers
        cdef Py_ssize_t head_bytes
        cdef bytes frame
        queue = files[1]
        cdef int64_t low = queue.min_offset, high = queue.max_offset
        if not low <= at < high or not _look(&found, queue, files[2], at, most[0], most[1], most[2], codes):
            return None
        if found.total > MAX_INT32 - PULL_HEAD_MAX:
            return None
        numbers[0], numbers[1], numbers[2] = found.following, low if low > first else first, high
        numbers[3], numbers[4] = topic_flag, group_flag
        head_bytes = self.put_head(head, binary, opaque, numbers, <int32_t>found.total)
        frame = PyBytes_FromStringAndSize(NULL, head_bytes + <Py_ssize_t>found.total)
        memcpy(PyBytes_AS_STRING(frame), head, head_bytes)
        if not _copy(&found, window, <uint8_t *>PyBytes_AS_STRING(frame) + head_bytes):
            return None
        return frame, head_bytes, found.count, found.following

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
