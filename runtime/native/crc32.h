/* CRC-32 (IEEE 802.3), as zlib's: by carry-less multiplication where the processor has it ("Fast CRC Computation
   for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009), else eight bytes at a time by tables. */
#ifndef KEELMQ_CRC32_H
#define KEELMQ_CRC32_H
#include <stddef.h>
#include <stdint.h>

static uint32_t keelmq_crc_table[8][256];

static uint32_t keelmq_crc_tables(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = keelmq_crc_table[7][low & 255] ^ keelmq_crc_table[6][low >> 8 & 255]
            ^ keelmq_crc_table[5][low >> 16 & 255] ^ keelmq_crc_table[4][low >> 24] ^ keelmq_crc_table[3][p[4]]
            ^ keelmq_crc_table[2][p[5]] ^ keelmq_crc_table[1][p[6]] ^ keelmq_crc_table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--) crc = crc >> 8 ^ keelmq_crc_table[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KEELMQ_CLMUL 1
static int keelmq_has_clmul;

#define FOLD(x, k, next) _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)

/* n >= 64 and a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t keelmq_crc_clmul(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i k12 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124), poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i mask = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(p + 32)), d = _mm_loadu_si128((const __m128i *)(p + 48)), x;
    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = FOLD(a, k12, _mm_loadu_si128((const __m128i *)p));
        b = FOLD(b, k12, _mm_loadu_si128((const __m128i *)(p + 16)));
        c = FOLD(c, k12, _mm_loadu_si128((const __m128i *)(p + 32)));
        d = FOLD(d, k12, _mm_loadu_si128((const __m128i *)(p + 48)));
    }
    a = FOLD(a, k34, b);
    a = FOLD(a, k34, c);
    a = FOLD(a, k34, d);
    for (; n >= 16; p += 16, n -= 16) a = FOLD(a, k34, _mm_loadu_si128((const __m128i *)p));
    x = _mm_clmulepi64_si128(a, k34, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), x);
    x = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, mask), k5, 0x00), x);
    x = _mm_clmulepi64_si128(_mm_and_si128(a, mask), poly, 0x10);
    x = _mm_clmulepi64_si128(_mm_and_si128(x, mask), poly, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, x), 1);
}
#endif

static void keelmq_crc32_begin(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        keelmq_crc_table[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++)
            keelmq_crc_table[k][n] = keelmq_crc_table[0][keelmq_crc_table[k - 1][n] & 255] ^ keelmq_crc_table[k - 1][n] >> 8;
#ifdef KEELMQ_CLMUL
    keelmq_has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static uint32_t keelmq_crc32(const uint8_t *p, size_t n) {
    uint32_t crc = 0xFFFFFFFFu;
#ifdef KEELMQ_CLMUL
    if (n >= 128 && keelmq_has_clmul) {
        size_t whole = n & ~(size_t)15;
        crc = keelmq_crc_clmul(crc, p, whole);
        p += whole;
        n -= whole;
    }
#endif
    return ~keelmq_crc_tables(crc, p, n);
}
#endif
