/* The interface of a kernel under test: plain C99, no other header of HPC-DL needed. A shared library that exports
 *
 *     const hpcdl_kernel_table* hpcdl_kernels(void);
 *
 * is checked by `hpcdl verify ./library.so`. docs/lab.md walks through an example, examples/04_my_kernels.c is its
 * code.
 *
 * A kernel names its contract: which operands it gets, in which order, and what they mean. `hpcdl verify --contracts`
 * lists all of them with their formulas. Operands that the contract calls optional have `data` NULL when absent.
 */
#ifndef HPCDL_OPS_KERNEL_ABI_H
#define HPCDL_OPS_KERNEL_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HPCDL_KERNEL_ABI 1u
#define HPCDL_MAX_RANK 6

/* Element types. bf16 is the upper half of a binary32, f16 a binary16; E4M3 has no infinities, E5M2 is the upper half
 * of a binary16. */
enum {
  HPCDL_NONE = 0,
  HPCDL_F32 = 1,
  HPCDL_BF16 = 2,
  HPCDL_I32 = 3,
  HPCDL_U8 = 4,
  HPCDL_F16 = 5,
  HPCDL_F8_E4M3 = 6,
  HPCDL_F8_E5M2 = 7
};
/* The same as a set, for hpcdl_kernel.dtypes: the float types of its operands that a kernel takes. */
enum { HPCDL_TAKES_F32 = 1u, HPCDL_TAKES_BF16 = 2u, HPCDL_TAKES_F16 = 4u };

enum { HPCDL_ON_CPU = 0, HPCDL_ON_CUDA = 1 };

/* What a kernel claims beyond a right result; hpcdl_kernel.flags. */
enum {
  HPCDL_IN_PLACE = 1u,              /* output 0 may be the memory of input 0 */
  HPCDL_SAME_BITS_ANY_THREADS = 2u, /* the bits of the result do not depend on hpcdl_call.threads */
  HPCDL_BITS_MAY_VARY = 4u          /* not even from run to run; without it, equal calls must give equal bits */
};

/* Results of hpcdl_kernel.run. Any other value is a failure. */
enum {
  HPCDL_OK = 0,
  HPCDL_UNSUPPORTED = 1 /* these shapes, types or arguments are not for this kernel; nothing was written */
};

/* Row-major and contiguous; strides, in elements, say so. `data` is aligned to one element, not more. */
typedef struct hpcdl_tensor {
  void* data;
  int32_t dtype, rank;
  int64_t shape[HPCDL_MAX_RANK], strides[HPCDL_MAX_RANK];
} hpcdl_tensor;

struct hpcdl_kernel;

/* One call. Inputs are read, outputs written whole; neither may be kept: the next call may bring other memory, other
 * values at the same place, other shapes. */
typedef struct hpcdl_call {
  const struct hpcdl_kernel* kernel;
  const hpcdl_tensor *inputs, *outputs;
  int32_t n_inputs, n_outputs;
  const void* args; /* the struct of the contract, below; NULL when it has none */
  void* workspace;  /* what hpcdl_kernel.workspace asked for, 64-byte aligned, holding anything */
  int64_t workspace_bytes;
  int32_t threads; /* how many threads may work */
  int32_t device_kind, device_index;
  void* stream; /* a cudaStream_t when device_kind is HPCDL_ON_CUDA */
} hpcdl_call;

typedef struct hpcdl_kernel {
  const char* contract; /* "softmax" */
  const char* name;     /* the kernel's own name, for reports */
  uint32_t dtypes, flags;
  int32_t device_kind; /* where it runs */
  int (*run)(const hpcdl_call* call);
  int64_t (*workspace)(const hpcdl_call* call); /* bytes; may be NULL: none. `workspace` of the call is not set yet */
  const void* user;                             /* for the library's own use */
} hpcdl_kernel;

typedef struct hpcdl_kernel_table {
  uint32_t abi; /* HPCDL_KERNEL_ABI */
  uint32_t count;
  const hpcdl_kernel* kernels;
} hpcdl_kernel_table;

#if defined(_WIN32)
#define HPCDL_KERNEL_EXPORT __declspec(dllexport)
#else
#define HPCDL_KERNEL_EXPORT __attribute__((visibility("default")))
#endif

/* What a library defines; declared, so that C++ and CUDA export it by this name. */
HPCDL_KERNEL_EXPORT const hpcdl_kernel_table* hpcdl_kernels(void);

/* ---- arguments, by contract ------------------------------------------------------------------------------------- */

/* softmax, softmax_backward. causal: row r of the last two dims (R, C) sees columns 0 .. r + C - R */
typedef struct hpcdl_softmax_args {
  float scale;
  int32_t causal;
} hpcdl_softmax_args;
/* layer_norm, rms_norm and their backward */
typedef struct hpcdl_norm_args {
  float eps;
} hpcdl_norm_args;
/* gelu, bias_gelu and their backward */
typedef struct hpcdl_gelu_args {
  int32_t erf; /* 0: tanh form */
} hpcdl_gelu_args;
typedef struct hpcdl_matmul_args {
  int32_t transpose_a, transpose_b;
  float scale;
} hpcdl_matmul_args;
enum { HPCDL_ACT_NONE = 0, HPCDL_ACT_RELU = 1, HPCDL_ACT_GELU_TANH = 2, HPCDL_ACT_GELU_ERF = 3, HPCDL_ACT_SILU = 4 };
/* linear, mlp and their backward. conv1d: weights are (inputs, outputs), not (outputs, inputs) */
typedef struct hpcdl_linear_args {
  int32_t activation, conv1d;
} hpcdl_linear_args;
/* attention, attention_backward */
typedef struct hpcdl_attention_args {
  int32_t heads, kv_heads, causal;
  float scale;
} hpcdl_attention_args;
/* rope, rope_backward */
typedef struct hpcdl_rope_args {
  int64_t head_dim;
} hpcdl_rope_args;
typedef struct hpcdl_grad_norm_args {
  float grad_scale, max_norm;
} hpcdl_grad_norm_args;
/* step counts from 0 */
typedef struct hpcdl_adamw_args {
  float lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step;
} hpcdl_adamw_args;
/* step counts from 0; skip: a gradient of this step is not finite */
typedef struct hpcdl_loss_scale_args {
  float growth, backoff, least, most, grad_scale;
  int32_t interval, skip;
  int64_t step;
} hpcdl_loss_scale_args;
/* exact 0: inputs are first rounded to 8 bits per row and group, as int4_linear.h says */
typedef struct hpcdl_int4_args {
  int32_t exact, activation;
} hpcdl_int4_args;
/* amax 0: that output is empty */
typedef struct hpcdl_fp8_linear_args {
  int32_t activation, amax;
} hpcdl_fp8_linear_args;

#ifdef __cplusplus
}
#endif
#endif
