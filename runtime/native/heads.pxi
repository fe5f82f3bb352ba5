# Numbers -> the header of the answer to a pull that found messages.

cdef enum:
    PULL_NUMBERS = 5
    PULL_HEAD_MAX = 1024
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
        cdef uint8_t *to = frame + 8
        cdef uint8_t *ext
        cdef int64_t[PULL_NUMBERS] numbers
        cdef int k, digits
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] = next_offset, least, most, topic_flag, group_flag
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
        return PyBytes_FromStringAndSize(<char *>frame, to - frame)
