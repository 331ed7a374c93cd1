// rope.h: tables of rotary inverse frequencies, with every scaling that files ask for already in them.
#ifndef ATSI_PLANNER_ARCH_ROPE_H
#define ATSI_PLANNER_ARCH_ROPE_H

#include "planner/arch/builder.h"

enum atsi_rope_scaling {
    ATSI_ROPE_PLAIN = 0,
    ATSI_ROPE_LINEAR = 1,
    ATSI_ROPE_YARN = 2
};

struct atsi_rope_config {
    double base;    // freq_base
    uint32_t n_rot; // rotated elements
    enum atsi_rope_scaling scaling;
    double factor;               // LINEAR, YARN: how much longer the context became
    double n_ctx_orig;           // YARN: the context before
    double beta_fast, beta_slow; // YARN: turns within n_ctx_orig above and below which a pair is kept and interpolated
    bool truncate;               // YARN: the correction range is rounded outwards to whole pairs
    const float *divisors; // [n_rot / 2] applied last (Llama 3's rope_freqs, Phi's long and short factors); NULL: none
};

// inv_freq[i] for i < n_rot / 2. Plain: base^(-2i / n_rot). Linear: that / factor. YaRN (arXiv 2309.00071, NTK by parts): pair i
// keeps its frequency where it turns more than beta_fast times in n_ctx_orig, is divided by factor below beta_slow, and is blended
// along a ramp over i between. Computed in double.
void atsi_rope_inv_freq(const struct atsi_rope_config *config, float *inv_freq);

// What the rope operations of some layers need.
struct atsi_rope {
    int32_t table; // tensor of inverse frequencies
    uint32_t n_rot;
    enum atsi_rope_pairing pairing;
    float scale; // of cos and sin
};

// From the keys freq_base, rope.scaling.* and the tensor rope_freqs. `yarn_truncate`: see above; the file does not say.
struct atsi_rope atsi_build_rope(struct atsi_builder *b, enum atsi_rope_pairing pairing, bool yarn_truncate);
// From a configuration that the family worked out itself.
struct atsi_rope atsi_build_rope_from(struct atsi_builder *b, enum atsi_rope_pairing pairing,
                                      const struct atsi_rope_config *config, float scale);
// Values of a float32 vector of the file with n elements, all finite and positive; NULL when absent or bad (recorded when it is bad, or
// required and absent). It points into the file. Its name must stand in is_absorbed() of planner/lower.c.
const float *atsi_build_divisors(struct atsi_builder *b, enum atsi_need need, const char *suffix, uint32_t n);

// Rotates n_heads heads of the model's key width in x, in place.
void atsi_build_rotate(struct atsi_builder *b, const struct atsi_rope *rope, struct atsi_view x, uint32_t n_heads);

#endif
