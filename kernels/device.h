// device.h: the narrow interface between the runtime and what computes: memory, streams, events, copies, operations.
//
// Two kinds of device stand behind it: `cuda` (kernels/cuda) and `sim` (kernels/sim: ordinary memory that the CPU side must
// not touch by pointer, a thread a stream, reference kernels, copies that take modelled time, an enforced memory limit).
// The host's own kernels are no device: the executor runs them on the thread pool (kernels/cpu/ops.h).
//
// Addresses: a `dev` pointer belongs to the device and must not be dereferenced by the host. Mapped memory is host memory
// that the device can read and write in place.
// Threads: a device and its streams are driven by one thread at a time. Errors are sticky unless said otherwise: after a
// failed call every later call on the device fails with the first message.
#ifndef ATSI_KERNELS_DEVICE_H
#define ATSI_KERNELS_DEVICE_H

#include "formats/base/error.h"
#include "kernels/op_call.h"

struct atsi_device;
struct atsi_stream;
struct atsi_event;
struct atsi_range;

struct atsi_device_info {
    char name[128];
    uint64_t total_bytes, free_bytes; // now, as the driver counts them
    uint64_t used_by_process_bytes;   // context, allocations, modules; 0 when the driver does not tell
    int n_copy_engines;
    bool can_register_host; // a mapped plan file can become pinned memory in place
    bool launches_block; // a launch returns when its work is done (debugging tools): the host must not run behind one
};

// Device memory that captured rounds take, and what the driver rounds up to: part of every budget on a device that captures. An
// estimate: no driver tells; peaks are in docs/performance.md.
#define ATSI_GRAPHS_BYTES ((uint64_t)32 << 20)

struct atsi_device_ops {
    void (*close)(struct atsi_device *d); // frees everything that is left; d is gone
    enum atsi_status (*info)(struct atsi_device *d, struct atsi_device_info *out, struct atsi_error *err);

    // Device memory, 256-byte aligned. ATSI_FAILED when the card (or the limit) has no room: not sticky.
    enum atsi_status (*alloc)(struct atsi_device *d, uint64_t bytes, void **dev, struct atsi_error *err);
    void (*free)(struct atsi_device *d, void *dev);
    // Free bytes of the card now, whoever took the rest; cheap enough to be asked between rounds.
    enum atsi_status (*free_bytes)(struct atsi_device *d, uint64_t *bytes, struct atsi_error *err);

    // A range of device addresses (struct atsi_range) of at least `bytes`; nothing is backed by memory yet.
    enum atsi_status (*range_create)(struct atsi_device *d, uint64_t bytes, struct atsi_range **out,
                                     struct atsi_error *err);
    // Backs the first `bytes` of the range, rounded up to whole chunks, and gives the memory behind them back to the card, which
    // waits for everything that runs on the device. New memory has no defined contents. ATSI_FAILED when the card (or the
    // limit) has no room: not sticky, r->backed_bytes says how far it came.
    enum atsi_status (*range_back)(struct atsi_device *d, struct atsi_range *r, uint64_t bytes, struct atsi_error *err);
    void (*range_destroy)(struct atsi_device *d, struct atsi_range *r); // NULL fine

    // Pinned host memory that is mapped into the device. *dev is its device address.
    enum atsi_status (*host_alloc)(struct atsi_device *d, uint64_t bytes, void **host, void **dev,
                                   struct atsi_error *err);
    void (*host_free)(struct atsi_device *d, void *host);
    // Registers read-only host memory (a shared file mapping, page aligned). Failure is normal and not sticky.
    enum atsi_status (*host_register)(struct atsi_device *d, const void *host, uint64_t bytes, const void **dev,
                                      struct atsi_error *err);
    void (*host_unregister)(struct atsi_device *d, const void *host);

    enum atsi_status (*stream_create)(struct atsi_device *d, struct atsi_stream **out, struct atsi_error *err);
    void (*stream_destroy)(struct atsi_stream *s);
    enum atsi_status (*stream_sync)(struct atsi_stream *s, struct atsi_error *err);
    // Whether all that the stream was given is done. Does not wait.
    enum atsi_status (*stream_query)(struct atsi_stream *s, bool *idle, struct atsi_error *err);

    // Events mark a point of a stream. `timed` events can be subtracted.
    enum atsi_status (*event_create)(struct atsi_device *d, bool timed, struct atsi_event **out,
                                     struct atsi_error *err);
    void (*event_destroy)(struct atsi_event *e);
    enum atsi_status (*event_record)(struct atsi_event *e, struct atsi_stream *s, struct atsi_error *err);
    enum atsi_status (*stream_wait)(struct atsi_stream *s, struct atsi_event *e, struct atsi_error *err);
    // The host waits: spins briefly, then yields and sleeps. An event that was never recorded counts as passed.
    enum atsi_status (*event_sync)(struct atsi_event *e, struct atsi_error *err);
    // Whether event_sync would return at once. From any thread, beside the one that drives the device too; a device that has failed
    // says yes, and the next call tells why.
    bool (*event_passed)(struct atsi_event *e);
    enum atsi_status (*event_elapsed_us)(struct atsi_event *from, struct atsi_event *to, float *us,
                                         struct atsi_error *err);

    // Marks: 32-bit words that count up and wrap, by which streams, and the host where the word lies in mapped memory, wait for each
    // other in work that was launched ahead. The value is *base_dev + offset, where base_dev is read on the device when the stream comes
    // to it (so that a captured graph counts on from round to round); NULL: offset alone.
    // Once the stream comes here, and all before it is visible to whoever reads the word, *word = value.
    enum atsi_status (*post_mark)(struct atsi_stream *s, void *word_dev, const int32_t *base_dev, int32_t offset,
                                  struct atsi_error *err);
    // The stream stops here until *word has reached the value. Whoever is to post it must come to it whatever happens.
    enum atsi_status (*await_mark)(struct atsi_stream *s, const void *word_dev, const int32_t *base_dev, int32_t offset,
                                   struct atsi_error *err);

    // Weights: through the copy engine. `host` is pinned or registered memory for an asynchronous copy.
    enum atsi_status (*copy_to_device)(struct atsi_stream *s, void *dev, const void *host, uint64_t bytes,
                                       struct atsi_error *err);
    enum atsi_status (*copy_to_host)(struct atsi_stream *s, void *host, const void *dev, uint64_t bytes,
                                     struct atsi_error *err);
    // Activations: a kernel moves n_rows rows of `width` 4-byte elements between device memory and mapped host memory (given
    // by its device address), so that they never queue behind weights. Strides in elements.
    enum atsi_status (*copy_rows)(struct atsi_stream *s, void *dst_dev, uint32_t dst_stride, const void *src_dev,
                                  uint32_t src_stride, uint32_t width, uint32_t n_rows, struct atsi_error *err);
    // Rows of experts' results that device and host computed together (struct atsi_experts_ref): as copy_rows, but only those of a row's
    // n_slots slots, slot_width elements each, that the destination lacks. mine_dev: [n_rows][n_slots] on the device, as the router wrote
    // it. to_device: slots with mine < 0, the host's; else the others, the device's.
    enum atsi_status (*copy_slots)(struct atsi_stream *s, void *dst_dev, uint32_t dst_stride, const void *src_dev,
                                   uint32_t src_stride, uint32_t slot_width, uint32_t n_slots, const int32_t *mine_dev,
                                   bool to_device, uint32_t n_rows, struct atsi_error *err);

    // What a later launch of this call (EXPERTS, one row, resident.fetched set) reads of tensor[0] is copied to resident.fetched, by a kernel:
    // the experts of its slots that are not resident. Reads its ids (in[1] or resident.mine) when the stream comes here. Launches behind it may
    // run beside it, until one that has resident.fetched set, an event is recorded or a capture ends.
    enum atsi_status (*fetch_experts)(struct atsi_stream *s, const struct atsi_op_call *call, struct atsi_error *err);

    // Runs one operation in stream order. `round` is the host copy of call->round.round and sizes the launch.
    enum atsi_status (*launch)(struct atsi_stream *s, const struct atsi_op_call *call, const struct atsi_round *round,
                               struct atsi_error *err);
    // Device scratch that `launch` needs beside the buffers, for the largest round; reserved once by `prepare`, which also
    // loads every module and makes every handle, so that nothing grows afterwards.
    uint64_t (*scratch_bytes)(const struct atsi_program *p, uint32_t n_tokens_max, uint32_t n_outputs_max,
                              uint32_t n_ctx);
    enum atsi_status (*prepare)(struct atsi_device *d, const struct atsi_program *p, uint32_t n_tokens_max,
                                uint32_t n_outputs_max, uint32_t n_ctx, struct atsi_error *err);

    // Capture of a piece of a stream, replayed as one launch (CUDA graphs). Between begin and end the stream records instead
    // of running; an event recorded there is recorded by every replay. *graph NULL without an error: the card has no memory left for it.
    enum atsi_status (*capture_begin)(struct atsi_stream *s, struct atsi_error *err);
    enum atsi_status (*capture_end)(struct atsi_stream *s, void **graph, struct atsi_error *err);
    enum atsi_status (*graph_launch)(struct atsi_stream *s, void *graph, struct atsi_error *err);
    void (*graph_destroy)(struct atsi_device *d, void *graph);
    // A stream that is only captured, never run, and that another thread may drive while the device's own thread works. Made after
    // `prepare`; stream_destroy ends it.
    enum atsi_status (*capture_stream_create)(struct atsi_device *d, struct atsi_stream **out, struct atsi_error *err);
};

// Every device, stream and event starts with these, so that callers write d->ops->x(d, ...).
struct atsi_device {
    const struct atsi_device_ops *ops;
};
struct atsi_stream {
    const struct atsi_device_ops *ops;
    struct atsi_device *device;
};
struct atsi_event {
    const struct atsi_device_ops *ops;
    struct atsi_device *device;
};

// Device addresses of which only the first backed_bytes have memory behind them. Fields are read-only for callers.
struct atsi_range {
    void *dev;             // first address, 256-byte aligned at least
    uint64_t size_bytes;   // addresses
    uint64_t backed_bytes; // whole chunks, or all
    uint64_t chunk_bytes;  // 0: the device cannot move memory: what is backed first stays, and `dev` is known only then
};

// Whether a mark has come to `value` or beyond it.
static inline bool atsi_mark_reached(int32_t mark, int32_t value) {
    return (int32_t)((uint32_t)mark - (uint32_t)value) >= 0;
}

#endif
