// marks.cu: words by which streams that run ahead of the host, and the host, wait for each other.
#include "kernels/cuda/marks.cuh"
#include "kernels/cuda/waiting.h"

// Ordinary launches: what stands before in the stream is complete, and its writes are visible to this thread, which hands
// them on to the host.
__global__ void post_mark_kernel(mark m) { post_here(m); }

__global__ void await_mark_kernel(mark m) {
    const volatile int32_t *word = m.word;
    uint32_t value = (uint32_t)value_of(m);
    while ((int32_t)((uint32_t)*word - value) < 0) __nanosleep(100); // atsi_mark_reached
    __threadfence_system();
}

cudaError_t load_marks(void) {
    static const void *const KERNELS[] = {(const void *)post_mark_kernel, (const void *)await_mark_kernel};
    return load_kernels(KERNELS);
}

// Marks whose values the host knows, in a stream that is not captured, are memory operations of the stream's own channel. A kernel
// would take the stream from the copy engine to the multiprocessors and back: beside another program each of these waits for its
// turn, and in between the copy engine is the other's for a whole time slice.
static bool is_plain(const struct atsi_stream *s, const int32_t *base_dev) {
    const struct cuda_device *d = cuda_device_of(s->device);
    return base_dev == NULL && !((const struct cuda_stream *)s)->capturing && d->mark_calls.write && d->mark_calls.wait;
}

void open_marks(struct cuda_device *d) {
    d->mark_calls.write = (decltype(d->mark_calls.write))cuda_driver_call("cuStreamWriteValue32", 12000);
    d->mark_calls.wait = (decltype(d->mark_calls.wait))cuda_driver_call("cuStreamWaitValue32", 12000);
}

// The runtime numbers errors as the driver does.
static enum atsi_status check_call(struct cuda_device *d, CUresult result, const char *what, struct atsi_error *err) {
    return cuda_check(d, (cudaError_t)result, what, err);
}

enum atsi_status cuda_post_mark(struct atsi_stream *s, void *word_dev, const int32_t *base_dev, int32_t offset,
                                struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(s->device);
    struct waiting *w = ((struct cuda_stream *)s)->waiting;
    struct mark posted = {(int32_t *)word_dev, base_dev, offset};
    ATSI_TRY(cuda_healthy(d, err));
    if (is_plain(s, base_dev)) {
        ATSI_TRY(cuda_flush(s, err)); // the write comes behind all of it, and its memory
        return check_call(d,
                          d->mark_calls.write(((struct cuda_stream *)s)->handle, (CUdeviceptr)word_dev,
                                              (cuuint32_t)offset, CU_STREAM_WRITE_VALUE_DEFAULT),
                          "posting a mark", err);
    }
    if (copies_launch_and_post(&w->copies, posted, launch_stream_of(s))) {
        w->copies.n_parts = 0;
    } else {
        ATSI_TRY(cuda_flush(s, err));
        post_mark_kernel<<<1, 1, 0, ((struct cuda_stream *)s)->handle>>>(posted);
    }
    return cuda_check(d, cudaGetLastError(), "posting a mark", err);
}

// While the stream waits for it. Rows in the card's own memory are out of its reach.
static bool host_may_write(const void *rows) {
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, rows) == cudaSuccess) return attributes.type != cudaMemoryTypeDevice;
    (void)cudaGetLastError();
    return true;
}

enum atsi_status cuda_await_mark(struct atsi_stream *s, const void *word_dev, const int32_t *base_dev, int32_t offset,
                                 struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(s->device);
    ATSI_TRY(cuda_healthy(d, err));
    ATSI_TRY(cuda_flush(s, err));
    if (host_may_write(d->acts.data)) d->acts.data = NULL;
    if (is_plain(s, base_dev))
        return check_call(d,
                          d->mark_calls.wait(((struct cuda_stream *)s)->handle, (CUdeviceptr)word_dev,
                                             (cuuint32_t)offset,
                                             CU_STREAM_WAIT_VALUE_GEQ), // as atsi_mark_reached
                          "waiting for a mark", err);
    await_mark_kernel<<<1, 1, 0, ((struct cuda_stream *)s)->handle>>>({(int32_t *)word_dev, base_dev, offset});
    return cuda_check(d, cudaGetLastError(), "waiting for a mark", err);
}
