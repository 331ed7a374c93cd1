#include "tools/synth/random.h"

#include <string.h>

void synth_normals(struct synth_random *r, float *out, size_t n) {
    const float mean = 4 * 127.5f, deviation = 147.8012f; // sqrt(4 (256^2 - 1) / 12)
    for (size_t i = 0; i < n; i += 2) {
        uint64_t bytes = synth_next(r), pairs = (bytes & 0x00ff00ff00ff00ffu) + (bytes >> 8 & 0x00ff00ff00ff00ffu);
        uint64_t sums = (pairs & 0x0000ffff0000ffffu) + (pairs >> 16 & 0x0000ffff0000ffffu);
        out[i] = ((float)(uint32_t)sums - mean) / deviation;
        if (i + 1 < n) out[i + 1] = ((float)(uint32_t)(sums >> 32) - mean) / deviation;
    }
}

void synth_bytes(struct synth_random *r, void *out, size_t n) {
    uint8_t *bytes = out;
    for (; n >= 8; n -= 8, bytes += 8) {
        uint64_t word = synth_next(r);
        memcpy(bytes, &word, 8);
    }
    uint64_t rest = synth_next(r);
    memcpy(bytes, &rest, n);
}
