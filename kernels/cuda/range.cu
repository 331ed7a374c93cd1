// range.cu: device addresses that are backed by memory chunk by chunk (CUDA virtual memory management), so that memory can be given
// back to the card and taken again without moving what stays.
//
// The driver's calls are reached through the CUDA runtime, so the program links no libcuda and starts without a driver. Where
// they or the device do not offer it, a range is one plain allocation that stays.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdlib.h>

#include "kernels/cuda/internal.h"

namespace {

// Small enough to follow a budget closely, large enough that thousands of them are never needed; a page of the card is 2 MiB.
const uint64_t CHUNK_BYTES = 32 << 20;

struct driver_calls {
    PFN_cuDeviceGetAttribute_v2000 get_attribute;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
};

struct cuda_range {
    struct atsi_range base;
    struct driver_calls calls;
    CUmemAllocationProp memory; // of a chunk
    CUdeviceptr start;
    CUmemGenericAllocationHandle *chunks; // [n_chunks] of the backed ones
    uint64_t n_chunks;
};

struct cuda_range *range_of(struct atsi_range *r) {
    return (struct cuda_range *)r;
}

template <class F> bool find_call(const char *name, F *call) {
    *call = (F)cuda_driver_call(name, 11020);
    return *call != NULL;
}

bool find_calls(struct driver_calls *c) {
    return find_call("cuDeviceGetAttribute", &c->get_attribute) &&
           find_call("cuMemGetAllocationGranularity", &c->granularity) &&
           find_call("cuMemAddressReserve", &c->reserve) && find_call("cuMemAddressFree", &c->unreserve) &&
           find_call("cuMemCreate", &c->create) && find_call("cuMemRelease", &c->release) &&
           find_call("cuMemMap", &c->map) && find_call("cuMemUnmap", &c->unmap) &&
           find_call("cuMemSetAccess", &c->set_access);
}

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Reserves the addresses. False where the device cannot do it; nothing is held then.
bool reserve_addresses(struct cuda_range *r, int ordinal, uint64_t bytes) {
    int supported = 0;
    size_t granularity = 0;
    if (!find_calls(&r->calls)) return false;
    if (r->calls.get_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) !=
            CUDA_SUCCESS ||
        !supported)
        return false;
    r->memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    r->memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    r->memory.location.id = ordinal;
    if (r->calls.granularity(&granularity, &r->memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        granularity == 0)
        return false;
    r->base.chunk_bytes = round_up(CHUNK_BYTES, granularity);
    r->base.size_bytes = round_up(bytes != 0 ? bytes : 1, granularity); // the last chunk may be shorter than the others
    r->chunks = (CUmemGenericAllocationHandle *)calloc(
        round_up(r->base.size_bytes, r->base.chunk_bytes) / r->base.chunk_bytes, sizeof *r->chunks);
    if (r->chunks == NULL) return false;
    if (r->calls.reserve(&r->start, r->base.size_bytes, 0, 0, 0) == CUDA_SUCCESS) {
        r->base.dev = (void *)r->start;
        return true;
    }
    free(r->chunks);
    r->chunks = NULL;
    return false;
}

uint64_t chunk_end(const struct cuda_range *r, uint64_t i) {
    uint64_t end = (i + 1) * r->base.chunk_bytes;
    return end < r->base.size_bytes ? end : r->base.size_bytes;
}

enum atsi_status refused(CUresult status, const char *what, uint64_t bytes, struct atsi_error *err) {
    return atsi_fail(err, ATSI_FAILED, "GPU: %s of %.1f MiB refused: %s (driver error %d)", what,
                     (double)bytes / 1048576.0,
                     status == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "not possible now", (int)status);
}

// One chunk more, or nothing.
enum atsi_status add_chunk(struct cuda_range *r, struct atsi_error *err) {
    CUmemGenericAllocationHandle chunk = 0;
    CUmemAccessDesc access = {};
    uint64_t begin = r->base.backed_bytes, bytes = chunk_end(r, r->n_chunks) - begin;
    access.location = r->memory.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult status = r->calls.create(&chunk, bytes, &r->memory, 0);
    if (status != CUDA_SUCCESS) return refused(status, "a chunk", bytes, err);
    status = r->calls.map(r->start + begin, bytes, 0, chunk, 0);
    if (status == CUDA_SUCCESS) {
        status = r->calls.set_access(r->start + begin, bytes, &access, 1);
        if (status != CUDA_SUCCESS) (void)r->calls.unmap(r->start + begin, bytes);
    }
    if (status != CUDA_SUCCESS) {
        (void)r->calls.release(chunk);
        return refused(status, "mapping a chunk", bytes, err);
    }
    r->chunks[r->n_chunks++] = chunk;
    r->base.backed_bytes = begin + bytes;
    return ATSI_OK;
}

CUresult drop_chunk(struct cuda_range *r) {
    uint64_t i = r->n_chunks - 1, begin = i * r->base.chunk_bytes;
    CUresult status = r->calls.unmap(r->start + begin, chunk_end(r, i) - begin);
    CUresult released = r->calls.release(r->chunks[i]);
    r->n_chunks = i;
    r->base.backed_bytes = begin;
    return status != CUDA_SUCCESS ? status : released;
}

// A device without chunks: the first backing is the only one.
enum atsi_status back_once(struct cuda_range *r, uint64_t bytes, struct atsi_error *err) {
    if (bytes <= r->base.backed_bytes) return ATSI_OK;
    if (r->base.backed_bytes != 0)
        return atsi_fail(err, ATSI_FAILED, "GPU: this device cannot back more of a range later");
    cudaError_t status = cudaMalloc(&r->base.dev, bytes);
    if (status != cudaSuccess) {
        (void)cudaGetLastError();
        r->base.dev = NULL;
        return atsi_fail(err, ATSI_FAILED, "GPU: allocation of %.1f MiB refused: %s", (double)bytes / 1048576.0,
                         cudaGetErrorString(status));
    }
    r->base.backed_bytes = bytes;
    return ATSI_OK;
}

} // namespace

enum atsi_status cuda_range_create(struct atsi_device *base, uint64_t bytes, struct atsi_range **out,
                                   struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(base);
    *out = NULL;
    ATSI_TRY(cuda_healthy(d, err));
    struct cuda_range *r = (struct cuda_range *)calloc(1, sizeof *r);
    if (r == NULL) return atsi_fail(err, ATSI_FAILED, "out of memory for a range of GPU addresses");
    if (!reserve_addresses(r, d->ordinal, bytes)) {
        r->base.chunk_bytes = 0;
        r->base.size_bytes = bytes;
    }
    *out = &r->base;
    return ATSI_OK;
}

enum atsi_status cuda_range_back(struct atsi_device *base, struct atsi_range *range, uint64_t bytes,
                                 struct atsi_error *err) {
    struct cuda_device *d = cuda_device_of(base);
    struct cuda_range *r = range_of(range);
    ATSI_TRY(cuda_healthy(d, err));
    if (bytes > range->size_bytes)
        return atsi_fail(err, ATSI_FAILED, "GPU: %llu bytes of a range of %llu", (unsigned long long)bytes,
                         (unsigned long long)range->size_bytes);
    if (range->chunk_bytes == 0) return back_once(r, bytes, err);
    uint64_t wanted = round_up(bytes, range->chunk_bytes) / range->chunk_bytes;
    while (r->n_chunks < wanted) ATSI_TRY(add_chunk(r, err));
    if (r->n_chunks == wanted) return ATSI_OK;
    ATSI_TRY(cuda_check(d, cudaDeviceSynchronize(), "waiting before memory is given back", err));
    CUresult status = CUDA_SUCCESS;
    while (status == CUDA_SUCCESS && r->n_chunks > wanted) status = drop_chunk(r);
    if (status == CUDA_SUCCESS) return ATSI_OK;
    atsi_fail(&d->sticky, ATSI_FAILED, "GPU: giving memory back: driver error %d", (int)status);
    return cuda_healthy(d, err);
}

void cuda_range_destroy(struct atsi_device *, struct atsi_range *range) {
    if (range == NULL) return;
    struct cuda_range *r = range_of(range);
    if (range->chunk_bytes == 0) {
        (void)cudaFree(range->dev);
    } else {
        (void)cudaDeviceSynchronize();
        while (r->n_chunks > 0) (void)drop_chunk(r);
        (void)r->calls.unreserve(r->start, range->size_bytes);
    }
    free(r->chunks);
    free(r);
}
