// header.h: the GGUF header of a synthetic model: metadata keys, vocabulary and tensor directory.
#ifndef ATSI_TOOLS_SYNTH_HEADER_H
#define ATSI_TOOLS_SYNTH_HEADER_H

#include "formats/gguf.h"
#include "tools/synth/tensors.h"

// Everything before the tensor data, padded to SYNTH_ALIGNMENT, in *bytes (free it). `vocabulary` gives its "tokenizer.*" keys
// as they are and must hold model->shape.n_vocab tokens; NULL makes a byte-level vocabulary: 256 bytes, one merge, an end token,
// and padding.
enum atsi_status synth_header_make(const struct synth_model *model, const struct atsi_gguf *vocabulary, char **bytes,
                                   size_t *size_bytes, struct atsi_error *err);

#endif
