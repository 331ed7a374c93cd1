// tensors.h: the tensor directory of a synthetic model: names, shapes, types, and what values each holds.
//
// Scales. Matrices have a standard deviation of gain / sqrt(inputs), so that what comes out of a norm and a matrix is `gain` large at
// any width. What the layers add to the stream together is about as large as the embedding, whatever their number, so logits have a
// standard deviation of 2 at any depth. The output norm of a tied model has random signs: without them the head would
// recognise the embedding of the last token in the stream and always repeat it.
//
// Routers. In a model with experts the first part of every embedding row is the same, so the stream always carries one known direction.
// Router rows hold, beside noise, a multiple of that direction: expert popularity falls as 1 / rank (Zipf), another order in each layer.
//
// Neighbours. Rows of attn_q and attn_k start alike within a head (where both have one type), so through that direction every query
// resembles every key, and rope lets the resemblance fade with distance: attention looks at the last tokens most, and what it adds
// changes slowly. The noise of routers reads the second half of the stream only, where embeddings and experts are faint and
// attention is not, so neighbouring tokens choose alike more often than distant ones.
#ifndef ATSI_TOOLS_SYNTH_TENSORS_H
#define ATSI_TOOLS_SYNTH_TENSORS_H

#include "formats/base/error.h"
#include "tools/synth/recipe.h"
#include "tools/synth/shape.h"

enum synth_content {
    SYNTH_NOISE,      // mean + std * normal (mean only for F32)
    SYNTH_EMBEDDING,  // noise, the first n_common elements of each row the same
    SYNTH_QUERY,      // noise; the first n_common elements of a row as in the row of the head's key, enlarged
    SYNTH_KEY,        // the same
    SYNTH_VALUE,      // noise; the first n_common elements small
    SYNTH_EXPERT_OUT, // noise; rows from n_own on small
    SYNTH_ROUTER,     // F32 [n_embd, n_experts]: noise and the multiple of the common part
    SYNTH_SIGNS,      // F32: +-mean
    SYNTH_DECAY,      // F32: -exp(mean + std * normal), how fast a delta-rule head forgets
    SYNTH_DIVISORS,   // F32: divisors of rope frequencies, `mean` for the longest waves
};

enum {
    SYNTH_NAME_CAP = 48,
    SYNTH_ALIGNMENT = 32
};

struct synth_tensor {
    char name[SYNTH_NAME_CAP];
    int32_t layer; // -1 outside the layers
    uint32_t n_dims;
    uint64_t ne[3]; // unused dimensions are 1
    enum atsi_dtype dtype;
    enum synth_content content;
    float mean, std;
    uint64_t offset, size_bytes; // offset from the start of the data section
};

struct synth_model {
    struct synth_shape shape;
    const struct synth_family *family;
    struct synth_recipe recipe;
    struct synth_tensor *tensors;
    uint32_t n_tensors;
    size_t tensors_cap;
    uint64_t data_bytes;
    uint32_t n_common; // elements at the start of each embedding row that all rows share, 0 without experts
    uint32_t n_own;    // elements, those included, in which a token's embedding is large; routers look at the others
};

// Lists the tensors of `shape` (copied). Free with synth_model_free whether it succeeds or not.
enum atsi_status synth_model_make(struct synth_model *out, const struct synth_shape *shape,
                                  const struct synth_recipe *recipe, struct atsi_error *err);
void synth_model_free(struct synth_model *model);

#endif
