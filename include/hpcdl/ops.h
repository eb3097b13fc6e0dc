#pragma once
// The ops, in two forms. On variables of a Graph an op is recorded, with its gradient, and runs with the program. On
// tensors it runs at once: the destination comes first, nothing is allocated for it, and on a GPU it is queued.
//
// Shapes are those of PyTorch's functions. Tensors are contiguous, of f32, bf16 or f16 unless said otherwise; sums are
// f32. An op throws Error if shapes or types do not fit, with what was expected and what was found.

#include <cstdint>

#include "hpcdl/graph.h"
#include "hpcdl/stream.h"

namespace hpcdl {

// -- recorded

/// scale * a b. a (..., M, K), b (..., K, N) or (K, N) for all matrices of a; the last two dims are transposed where
/// asked.
Var matmul(const Var& a, const Var& b, bool transpose_a = false, bool transpose_b = false, float scale = 1);
/// activation(x W^T + bias) + residual. x (..., K), w (N, K), bias (N), residual (..., N).
Var linear(const Var& x, const Var& w, const Var& bias = {}, Activation activation = Activation::none,
           const Var& residual = {});
/// Rows of table (V, C) by ids (...) of i32: (..., C).
Var embedding(const Var& table, const Var& ids);
/// softmax(q k^T / sqrt(D)) v for each head. q (B, T, heads * D), k and v (B, S, kv_heads * D); kv_heads 0: as many as
/// heads. causal: query t sees keys 0 .. t + S - T.
Var attention(const Var& q, const Var& k, const Var& v, int heads, int kv_heads = 0, bool causal = true);
/// softmax(scale * x) over the last dim. causal: row r of (..., R, C) sees columns 0 .. r + C - R.
Var softmax(const Var& x, float scale = 1, bool causal = false);
/// Over the last dim; gamma, beta and weight have its size.
Var layer_norm(const Var& x, const Var& gamma, const Var& beta, float eps = 1e-5f);
Var rms_norm(const Var& x, const Var& weight, float eps = 1e-5f);
/// The tanh form.
Var gelu(const Var& x);
Var relu(const Var& x);
Var add(const Var& a, const Var& b);
Var cast(const Var& x, DType to);
/// Sets elements to 0 with probability p and scales the others by 1 / (1 - p). Draws follow StepParams::seed and step.
Var dropout(const Var& x, float p);
/// The SUM of the losses of all rows, one f32. logits (..., V), targets (...) of i32; a target of -1 does not count.
Var cross_entropy_loss(const Var& logits, const Var& targets);

// -- at once; y has the shape and the type that the recorded form would give it

void matmul(Stream& s, const Tensor& y, const View& a, const View& b, bool transpose_a = false,
            bool transpose_b = false, float scale = 1);
/// bias and residual may be absent (View()).
void linear(Stream& s, const Tensor& y, const View& x, const View& w, const View& bias = {},
            Activation activation = Activation::none, const View& residual = {});
void embedding(Stream& s, const Tensor& y, const View& table, const View& ids);
void attention(Stream& s, const Tensor& y, const View& q, const View& k, const View& v, int heads, int kv_heads = 0,
               bool causal = true);
void softmax(Stream& s, const Tensor& y, const View& x, float scale = 1, bool causal = false);
void layer_norm(Stream& s, const Tensor& y, const View& x, const View& gamma, const View& beta, float eps = 1e-5f);
void rms_norm(Stream& s, const Tensor& y, const View& x, const View& weight, float eps = 1e-5f);
void gelu(Stream& s, const Tensor& y, const View& x);
void relu(Stream& s, const Tensor& y, const View& x);
void add(Stream& s, const Tensor& y, const View& a, const View& b);
void cast(Stream& s, const Tensor& y, const View& x);

}  // namespace hpcdl
