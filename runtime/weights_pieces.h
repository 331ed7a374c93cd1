// weights_pieces.h: what all threads bring into memory at once, piece by piece, each piece by whoever is free (private to the weights).
// Reading, unpacking and copying to the card overlap because every thread does all of them for its piece.
#ifndef ATSI_RUNTIME_WEIGHTS_PIECES_H
#define ATSI_RUNTIME_WEIGHTS_PIECES_H

#include "runtime/upload.h"

struct weights_piece;

struct weights_pieces {
    const struct atsi_plan_file *file;
    struct weights_piece *pieces;
    uint32_t n_pieces;
    size_t cap;
};

// Queues all of a tensor: stored bytes (unpacked where they are compressed) for the card at `dev`, or, with dev NULL, pages of the
// mapping that are not to fault later; a compressed tensor has none.
enum atsi_status weights_pieces_add(struct weights_pieces *p, const struct atsi_plan_blob *blob, void *dev,
                                    struct atsi_error *err);
// The same for `bytes` from `offset` on of a tensor that is stored as it is.
enum atsi_status weights_pieces_add_part(struct weights_pieces *p, const struct atsi_plan_blob *blob, uint64_t offset,
                                         uint64_t bytes, void *dev, struct atsi_error *err);
void weights_pieces_free(struct weights_pieces *p); // fine on a zeroed one

struct weights_pieces_run {
    struct atsi_pool *pool;     // at most as many threads as the upload has lanes
    struct atsi_upload *upload; // for pieces with a device address
    // Told of the bytes of a piece that has come, from one thread at a time; anything but ATSI_OK ends the run.
    enum atsi_status (*advance)(void *context, uint64_t bytes, struct atsi_error *err);
    void *context;
};
// Brings all pieces and forgets them; copies may still be on their way. The first failure is returned, and the pieces behind it stay away.
enum atsi_status weights_pieces_bring(struct weights_pieces *p, const struct weights_pieces_run *run,
                                      struct atsi_error *err);

#endif
