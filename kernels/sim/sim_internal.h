// sim_internal.h: what the files of the simulated device share.
//
// One mutex guards everything that streams and the driving thread share; one condition tells of every change. Stream threads
// hold it only between items. Another one is the driver's: who launches holds it, and who builds or frees a graph.
#ifndef ATSI_KERNELS_SIM_INTERNAL_H
#define ATSI_KERNELS_SIM_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/ops.h"
#include "kernels/sim/sim_device.h"

enum sim_block_kind {
    SIM_DEVICE_MEMORY,
    SIM_MAPPED_MEMORY,
    SIM_REGISTERED_MEMORY,
    SIM_RANGE_MEMORY // the backed beginning of a range
};
enum sim_direction {
    SIM_TO_DEVICE,
    SIM_TO_HOST
};

struct sim_block {
    uint8_t *start; // host address
    uint64_t bytes;
    enum sim_block_kind kind;
};

struct sim_device {
    struct atsi_device base;
    struct atsi_sim_params params;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_mutex_t driver;   // taken before `lock`
    struct sim_block *blocks; // [n_blocks]
    uint32_t n_blocks;
    size_t blocks_cap;
    uint64_t used_bytes, pinned_bytes;
    struct sim_range *ranges;    // list
    struct sim_stream *streams;  // list
    struct sim_event *events;    // list
    double engine_free_us[2];    // when each copy engine is next free (atsi_clock_us)
    struct atsi_error failure;   // sticky, status ATSI_OK while all is well
    pthread_mutex_t kernel_lock; // operations run one at a time
    struct atsi_cpu *cpu;        // NULL before prepare
};

// One record of an event. The event and the items that set it or wait for it each hold a reference: a wait means the record
// that was the latest when it was called, whatever is recorded or destroyed later.
struct sim_fence {
    uint32_t n_references;
    bool passed;
    double passed_us;
};

struct sim_event {
    struct atsi_event base;
    struct sim_event *next;
    bool timed;
    struct sim_fence *fence; // of the latest record, NULL before the first
};

struct sim_item {
    struct sim_item *next;
    enum {
        SIM_ITEM_COPY,
        SIM_ITEM_ROWS,
        SIM_ITEM_SLOTS,
        SIM_ITEM_LAUNCH,
        SIM_ITEM_RECORD,
        SIM_ITEM_WAIT,
        SIM_ITEM_POST,
        SIM_ITEM_AWAIT,
        SIM_ITEM_EVENT // in a graph: an event that every replay records
    } kind;
    union {
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
            enum sim_direction direction;
            void *staged;
        } copy; // staged: to be freed
        struct {
            uint32_t *dst;
            const uint32_t *src;
            uint32_t dst_stride, src_stride, width, n_rows;
        } rows;
        struct {
            uint32_t *dst;
            const uint32_t *src;
            const int32_t *mine;
            uint32_t dst_stride, src_stride, slot_width, n_slots, n_rows;
            bool to_device;
        } slots;
        struct {
            struct atsi_op_call call;
            struct atsi_round sized_for;
            uint8_t gpu_slots[ATSI_DIVIDED_SLOTS_MAX + 1]; // what the call's pointed to
            bool replayed;                                 // the position is what it is by then
            bool fetches;                                  // only what fetch_experts does
        } launch;                                          // host addresses
        struct {
            int32_t *word;
            const int32_t *base; // NULL: 0
            int32_t offset;
        } mark; // host addresses
        struct atsi_event *event;
        struct sim_fence *fence; // record, wait
    } u;
};

// What a stream recorded, as items to be enqueued again.
struct sim_graph {
    struct sim_item *first, **last;
};

struct sim_stream {
    struct atsi_stream base;
    struct sim_stream *next;
    pthread_t thread;
    struct sim_item *first, **last; // queue
    uint32_t n_queued;
    bool busy, stopping;
    struct sim_graph *capture; // NULL: items run
    uint64_t random;           // state of the delays
};

static inline struct sim_device *sim_of(struct atsi_device *d) { return (struct sim_device *)d; }

// ---- errors (sim_device.c) ----------------------------------------------------------------------------------------------
// The first failure, as every call reports it; ATSI_OK when there is none.
enum atsi_status sim_state(struct sim_device *d, struct atsi_error *err);
// Records *failure as the first and hands out the first.
enum atsi_status sim_poison(struct sim_device *d, const struct atsi_error *failure, struct atsi_error *err);

// ---- memory (sim_memory.c) ----------------------------------------------------------------------------------------------
// The host address of `bytes` at a device address. Not inside one live block, or not writable when `write`: ATSI_FAILED.
enum atsi_status sim_translate(struct sim_device *d, const void *dev, uint64_t bytes, bool write, void **host,
                               struct atsi_error *err);
void *sim_device_address(const void *host);
bool sim_is_pinned(struct sim_device *d, const void *host, uint64_t bytes);
enum atsi_status sim_alloc(struct atsi_device *d, uint64_t bytes, void **dev, struct atsi_error *err);
void sim_free(struct atsi_device *d, void *dev);
enum atsi_status sim_host_alloc(struct atsi_device *d, uint64_t bytes, void **host, void **dev, struct atsi_error *err);
void sim_host_free(struct atsi_device *d, void *host);
enum atsi_status sim_host_register(struct atsi_device *d, const void *host, uint64_t bytes, const void **dev,
                                   struct atsi_error *err);
void sim_host_unregister(struct atsi_device *d, const void *host);
void sim_free_all(struct sim_device *d);
enum atsi_status sim_free_bytes(struct atsi_device *d, uint64_t *bytes, struct atsi_error *err);
// Bytes of device memory that can be had now, and the error when they are too few.
uint64_t sim_room(const struct sim_device *d);
enum atsi_status sim_no_room(const struct sim_device *d, uint64_t bytes, struct atsi_error *err);
// Enters a block into the list.
enum atsi_status sim_add_block(struct sim_device *d, void *start, uint64_t bytes, enum sim_block_kind kind,
                               struct atsi_error *err);
// Takes the block that starts at `start` out of the list once no stream can use it. False when there is none: a sticky error.
bool sim_remove_block(struct sim_device *d, const void *start, enum sim_block_kind kind);
// Another size for the block of a range.
void sim_resize_block(struct sim_device *d, const void *start, uint64_t bytes);

// ---- ranges (sim_range.c) -------------------------------------------------------------------------------------------------
enum atsi_status sim_range_create(struct atsi_device *d, uint64_t bytes, struct atsi_range **out,
                                  struct atsi_error *err);
enum atsi_status sim_range_back(struct atsi_device *d, struct atsi_range *r, uint64_t bytes, struct atsi_error *err);
void sim_range_destroy(struct atsi_device *d, struct atsi_range *r);
void sim_destroy_ranges(struct sim_device *d);

// ---- streams and events (sim_stream.c) ------------------------------------------------------------------------------------
enum atsi_status sim_stream_create(struct atsi_device *d, struct atsi_stream **out, struct atsi_error *err);
void sim_stream_destroy(struct atsi_stream *s);
enum atsi_status sim_stream_sync(struct atsi_stream *s, struct atsi_error *err);
enum atsi_status sim_stream_query(struct atsi_stream *s, bool *idle, struct atsi_error *err);
// A random time, when the device's parameters ask for delays; lock not held.
void sim_delay(struct sim_stream *stream);
void sim_drain_all(struct sim_device *d); // waits until every stream is idle
enum atsi_status sim_event_create(struct atsi_device *d, bool timed, struct atsi_event **out, struct atsi_error *err);
void sim_event_destroy(struct atsi_event *e);
enum atsi_status sim_event_record(struct atsi_event *e, struct atsi_stream *s, struct atsi_error *err);
enum atsi_status sim_stream_wait(struct atsi_stream *s, struct atsi_event *e, struct atsi_error *err);
enum atsi_status sim_event_sync(struct atsi_event *e, struct atsi_error *err);
bool sim_event_passed(struct atsi_event *e);
enum atsi_status sim_event_elapsed_us(struct atsi_event *from, struct atsi_event *to, float *us,
                                      struct atsi_error *err);
// Appends a copy of the item to the stream's queue, or to its capture.
enum atsi_status sim_enqueue(struct atsi_stream *s, const struct sim_item *item, struct atsi_error *err);

// ---- marks and graphs (sim_graph.c) -----------------------------------------------------------------------------------------
enum atsi_status sim_post_mark(struct atsi_stream *s, void *word_dev, const int32_t *base_dev, int32_t offset,
                               struct atsi_error *err);
enum atsi_status sim_await_mark(struct atsi_stream *s, const void *word_dev, const int32_t *base_dev, int32_t offset,
                                struct atsi_error *err);
// On the stream's thread, lock not held.
void sim_perform_post(const struct sim_item *item);
void sim_perform_await(struct sim_device *d, const struct sim_item *item);
enum atsi_status sim_capture_begin(struct atsi_stream *s, struct atsi_error *err);
enum atsi_status sim_capture_end(struct atsi_stream *s, void **graph, struct atsi_error *err);
enum atsi_status sim_graph_launch(struct atsi_stream *s, void *graph, struct atsi_error *err);
void sim_graph_destroy(struct atsi_device *d, void *graph);
// Appends *item to the stream's capture, which owns it from then on.
void sim_graph_append(struct sim_graph *g, struct sim_item *item);

// ---- what streams do (sim_work.c) -----------------------------------------------------------------------------------------
enum atsi_status sim_copy_to_device(struct atsi_stream *s, void *dev, const void *host, uint64_t bytes,
                                    struct atsi_error *err);
enum atsi_status sim_copy_to_host(struct atsi_stream *s, void *host, const void *dev, uint64_t bytes,
                                  struct atsi_error *err);
enum atsi_status sim_copy_rows(struct atsi_stream *s, void *dst_dev, uint32_t dst_stride, const void *src_dev,
                               uint32_t src_stride, uint32_t width, uint32_t n_rows, struct atsi_error *err);
enum atsi_status sim_copy_slots(struct atsi_stream *s, void *dst_dev, uint32_t dst_stride, const void *src_dev,
                                uint32_t src_stride, uint32_t slot_width, uint32_t n_slots, const int32_t *mine_dev,
                                bool to_device, uint32_t n_rows, struct atsi_error *err);
enum atsi_status sim_fetch_experts(struct atsi_stream *s, const struct atsi_op_call *call, struct atsi_error *err);
enum atsi_status sim_launch(struct atsi_stream *s, const struct atsi_op_call *call, const struct atsi_round *round,
                            struct atsi_error *err);
// Performs a copy, rows, slots or launch item on the calling stream thread, lock not held.
enum atsi_status sim_perform(struct sim_device *d, const struct sim_item *item, struct atsi_error *err);

#endif
