// random.h: seeded random numbers, the same on every machine. A generator is a value; nothing is shared.
#ifndef ATSI_TOOLS_SYNTH_RANDOM_H
#define ATSI_TOOLS_SYNTH_RANDOM_H

#include <stddef.h>
#include <stdint.h>

// xoshiro256++ (Blackman and Vigna, prng.di.unimi.it), seeded through splitmix64 from the same authors.
struct synth_random {
    uint64_t state[4];
};

static inline uint64_t synth_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// One number from three.
static inline uint64_t synth_hash(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t step = 0x9e3779b97f4a7c15u;
    return synth_mix(synth_mix(synth_mix(a + step) + b + step) + c + step);
}

static inline struct synth_random synth_random_from(uint64_t seed) {
    struct synth_random r;
    for (unsigned i = 0; i < 4; i++) r.state[i] = synth_hash(seed, i, 0);
    return r;
}

static inline uint64_t synth_rotl(uint64_t x, unsigned n) { return x << n | x >> (64 - n); }

static inline uint64_t synth_next(struct synth_random *r) {
    uint64_t *s = r->state, result = synth_rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = synth_rotl(s[3], 45);
    return result;
}

// Uniform in [0, 1).
static inline float synth_uniform(struct synth_random *r) { return (float)(synth_next(r) >> 40) * 0x1p-24f; }

// n numbers that are nearly normal, with mean 0 and variance 1: sums of four bytes, two of them from one draw.
void synth_normals(struct synth_random *r, float *out, size_t n);
void synth_bytes(struct synth_random *r, void *out, size_t n);

#endif
