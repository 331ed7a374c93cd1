// marks.cu: words by which streams that run ahead of the host, and the host, wait for each other.
#include "kernels/cuda/internal.h"

// Ordinary launches: what stands before in the stream is complete, and its writes are visible to this thread, which hands
// them on to the host.
__device__ inline int32_t mark_value(const int32_t *base, int32_t offset) {
    return (int32_t)((base ? (uint32_t)*base : 0) + (uint32_t)offset);
}

__global__ void post_mark_kernel(volatile int32_t *word, const int32_t *base, int32_t offset) {
    __threadfence_system();
    *word = mark_value(base, offset);
}

__global__ void await_mark_kernel(const volatile int32_t *word, const int32_t *base, int32_t offset) {
    uint32_t value = (uint32_t)mark_value(base, offset);
    while ((int32_t)((uint32_t)*word - value) < 0) __nanosleep(100); // atsi_mark_reached
    __threadfence_system();
}

cudaError_t load_marks(void) {
    static const void *const KERNELS[] = {(const void *)post_mark_kernel, (const void *)await_mark_kernel};
    return load_kernels(KERNELS);
}

enum atsi_status cuda_post_mark(struct atsi_stream *s, void *word_dev, const int32_t *base_dev, int32_t offset,
                                struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(s->device);
    ATSI_TRY(cuda_healthy(d, err));
    ATSI_TRY(cuda_flush(s, err));
    post_mark_kernel<<<1, 1, 0, ((struct cuda_stream *)s)->handle>>>((int32_t *)word_dev, base_dev, offset);
    return cuda_check(d, cudaGetLastError(), "posting a mark", err);
}

enum atsi_status cuda_await_mark(struct atsi_stream *s, const void *word_dev, const int32_t *base_dev, int32_t offset,
                                 struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(s->device);
    ATSI_TRY(cuda_healthy(d, err));
    ATSI_TRY(cuda_flush(s, err));
    d->acts.data = NULL; // the host may write mapped rows meanwhile
    await_mark_kernel<<<1, 1, 0, ((struct cuda_stream *)s)->handle>>>((const int32_t *)word_dev, base_dev, offset);
    return cuda_check(d, cudaGetLastError(), "waiting for a mark", err);
}
