// Every op at chosen shapes. Large means at least four times a cache of 32 MiB even in bf16, so that no data of one run
// are left for the next; the other shapes are those of GPT-2 124M with 1024 tokens.

#include "hpcdl/ops/adamw/adamw.h"
#include "hpcdl/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/argmax/argmax.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/avg_pool2d/avg_pool2d.h"
#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/ops/bias_gelu/bias_gelu.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/conv2d/conv2d.h"
#include "hpcdl/ops/cross_entropy/smooth.h"
#include "hpcdl/ops/dropout/dropout.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/fuse/probe.h"
#include "hpcdl/ops/gelu/gelu.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/ops/kv_cache/kv_cache.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/ops/loss_scale/loss_scale.h"
#include "hpcdl/ops/matmul/matmul.h"
#include "hpcdl/ops/max_pool2d/max_pool2d.h"
#include "hpcdl/ops/mlp/mlp.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/relu/relu.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/sgd/sgd.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/ops/swiglu/swiglu.h"
#include "hpcdl/ops/top1/top1.h"
#include "hpcdl/program/on.h"
#include "tools/cases.h"

namespace hpcdl::lab {

namespace {

/// The operands of a family at one shape, in the order in which they were described.
class Inputs {
 public:
  Inputs(Graph& g, const std::string& dims, const std::vector<std::string>& described, const Shape& s, DType d)
      : graph(g), shape(s), dtype(d), dims_(dims) {
    for (const auto& words : described) vars_.push_back(make(words));
  }
  const Var& operator[](std::size_t i) const { return vars_[i]; }
  /// A dim by its letter.
  std::int64_t dim(char letter) const { return shape[static_cast<int>(dims_.find(letter) / 2)]; }

  Graph& graph;
  const Shape& shape;
  DType dtype;

 private:
  /// "w O33I": the operand w of the dims O, 3, 3 and I, which has a gradient if the graph records gradients; a product
  /// of dims stands in parentheses. "table TD f32": an input of that type without a gradient. "m N master": f32 with a
  /// gradient. "ids T<V": integers.
  Var make(const std::string& words) const {
    const auto space = words.find(' '), end = words.find_first_of(" <", space + 1);
    const std::string name = words.substr(0, space), type = end == words.npos ? "" : words.substr(end);
    const Shape s = shape_of(words.substr(space + 1, end - space - 1));
    if (type.starts_with('<')) return graph.input(name, {s, DType::i32});
    if (type == " f32") return graph.input(name, {s, DType::f32});
    return graph.differentiable_input(name, {s, type == " master" ? DType::f32 : dtype});
  }
  Shape shape_of(const std::string& letters) const {
    Shape s;
    bool product = false;
    std::int64_t size = 1;
    for (const char c : letters) {
      if (c == '(') product = true;
      else if (c == ')') product = false;
      else size *= c >= '0' && c <= '9' ? c - '0' : dim(c);
      if (!product) s.push_back(std::exchange(size, 1));
    }
    return s;
  }

  const std::string& dims_;
  std::vector<Var> vars_;
};

class Families {
 public:
  /// An op with operands as Inputs describes them. `record(inputs)` returns the output that has a gradient, or Var().
  template <class F>
  CaseFamily& add(std::string op, std::string dims, std::vector<std::string> operands, std::vector<Shape> shapes,
                  F record) {
    auto& f = list.emplace_back();
    f.op = std::move(op), f.dims = std::move(dims), f.shapes = std::move(shapes);
    for (const auto& words : operands)
      if (const auto below = words.find('<'); below != words.npos)
        f.index_dim = static_cast<int>(f.dims.find(words[below + 1]) / 2);
    f.forward = [dims = f.dims, operands = std::move(operands), record](Graph& g, const Shape& s, DType d) -> Var {
      return record(Inputs(g, dims, operands, s, d));
    };
    return f;
  }
  template <class F>
  CaseFamily& add_forward(std::string op, std::string dims, std::vector<std::string> operands,
                          std::vector<Shape> shapes, F record) {
    auto& f = add(std::move(op), std::move(dims), std::move(operands), std::move(shapes), record);
    f.gradient = false;
    return f;
  }

  std::vector<CaseFamily> list;
};

using In = const Inputs&;
const Shape kPlane{8192, 4096}, kVector{33554432};  // 128 MiB in f32

void element_wise(Families& to) {
  const std::vector<Shape> planes{kPlane, {1024, 3072}}, vectors{kVector, {786432}};
  to.add("add", "N", {"a N", "b N"}, vectors, [](In v) { return add(v[0], v[1]); });
  to.add("relu", "RxC", {"x RC"}, planes, [](In v) { return relu(v[0]); });
  to.add("gelu", "RxC", {"x RC"}, planes, [](In v) { return gelu(v[0]); });
  to.add("gelu+erf", "RxC", {"x RC"}, planes, [](In v) { return gelu(v[0], {Gelu::Form::erf}); });
  to.add("bias_gelu", "RxC", {"x RC", "bias C"}, planes, [](In v) { return bias_gelu(v[0], v[1]); });
  to.add("swiglu", "RxC", {"a RC", "b RC"}, planes, [](In v) { return swiglu(v[0], v[1]); });
  to.add("dropout", "N", {"x N"}, vectors, [](In v) { return dropout(v[0], 0.1f); });
  to.add("cast", "N", {"x N"}, vectors,
         [](In v) { return cast(v[0], v.dtype == DType::f32 ? DType::bf16 : DType::f32); });
}

/// y = gelu(2 x + bias) + x, composed at compile time into one pass.
Var fused_chain(In v) {
  const Var y = v.graph.temporary("fuse", v[0].spec());
  const Operand operands[] = {write_operand(y), read_operand(v[0]), read_operand(v[1])};
  const RunFn run = [](Stream& stream, const Grad* t, const void*) {
    on(stream, [&](auto isa, Pool& pool) {
      fuse::probe(isa, pool, fuse::Probe::scale_bias_gelu_residual, t[0], t[1], t[2], t[2]);
    });
  };
  v.graph.emit("fuse", run, operands, nullptr, 0, {.operations = 15.0 * static_cast<double>(y.spec().size())});
  return y;
}

Var filled(In v) {
  const Var y = v.graph.temporary("y", {v.shape, v.dtype});
  const Operand operand = write_operand(y);
  const Fill::Args args{1};
  v.graph.emit(Fill::name, op_info<Fill>.forward, std::span(&operand, 1), &args, sizeof args);
  return y;
}

Var added_into(In v) {
  const Operand operands[] = {update_operand(v[0]), read_operand(v[1])};
  v.graph.emit<AddInto>(operands, nullptr, 0, AddInto::cost(v[1].spec()));
  return {};
}

void raw_element_wise(Families& to) {
  to.add_forward("fuse", "RxC", {"x RC", "bias C"}, {kPlane, {1024, 3072}}, fused_chain);
  to.add_forward("fill", "N", {}, {{67108864}, {786432}}, filled);
  to.add_forward("fill+add_into", "N", {"y N", "x N"}, {kVector, {786432}}, added_into);
}

void row_wise(Families& to) {
  to.add("softmax", "RxC", {"x RC"}, {{4096, 8192}, {4096, 1024}}, [](In v) {
      return softmax(v[0]);
    }).forward_shapes = {{4096, 32768}};
  to.add("softmax+causal", "BxTxT", {"x BTT"}, {{48, 1024, 1024}},
         [](In v) { return softmax(v[0], {.scale = 0.125f, .causal = true}); });
  const std::vector<Shape> norms{kPlane, {1024, 768}};
  to.add("layer_norm", "RxC", {"x RC", "gamma C", "beta C"}, norms, [](In v) { return layer_norm(v[0], v[1], v[2]); });
  to.add("layer_norm+residual", "RxC", {"x RC", "gamma C", "residual RC", "beta C"}, norms,
         [](In v) { return add_layer_norm(v[0], v[2], v[1], v[3])[1]; });
  to.add("rms_norm", "RxC", {"x RC", "gamma C"}, norms, [](In v) { return rms_norm(v[0], v[1]); });
  to.add("rms_norm+residual", "RxC", {"x RC", "gamma C", "residual RC"}, norms,
         [](In v) { return add_rms_norm(v[0], v[2], v[1])[1]; });
}

/// act(x W^T + bias) + residual, x (M, K), W (N, K).
CaseFamily& affine(Families& to, std::string op, Activation act, bool bias, bool residual, std::vector<Shape> shapes) {
  std::vector<std::string> operands{"x MK", "w NK"};
  if (bias) operands.emplace_back("bias N");
  if (residual) operands.emplace_back("residual MN");
  return to.add(std::move(op), "MxNxK", operands, std::move(shapes), [=](In v) {
    return linear(v[0], v[1], bias ? v[2] : Var(), {.activation = act}, residual ? v[3] : Var());
  });
}

void products(Families& to) {
  const Shape mlp_shape{1024, 3072, 768}, head{256, 50304, 768};
  to.add("matmul", "MxNxK", {"a MK", "b KN"}, {mlp_shape, {1024, 1024, 1024}}, [](In v) {
      return matmul(v[0], v[1], {});
    }).forward_shapes = {{4096, 4096, 4096}, {1, 16384, 8192}};
  to.add("matmul+nt", "MxNxK", {"a MK", "b NK"}, {}, [](In v) {
      return matmul(v[0], v[1], {.transpose_b = true});
    }).forward_shapes = {mlp_shape, head};
  to.add("matmul+tn", "MxNxK", {"a KM", "b KN"}, {}, [](In v) {
      return matmul(v[0], v[1], {.transpose_a = true});
    }).forward_shapes = {{3072, 768, 1024}};
  affine(to, "linear", Activation::none, false, false, {mlp_shape}).forward_shapes = {head};
  affine(to, "linear+bias", Activation::none, true, false, {mlp_shape});
  affine(to, "linear+bias_relu", Activation::relu, true, false, {mlp_shape});
  affine(to, "linear+bias_gelu", Activation::gelu_tanh, true, false, {mlp_shape});
  affine(to, "linear+bias_residual", Activation::none, true, true, {{1024, 768, 3072}});
  to.add("mlp", "TxCxF", {"x TC", "w1 FC", "b1 F", "w2 CF", "b2 C"}, {{1024, 768, 3072}}, [](In v) {
      return mlp(v[0], v[1], v[2], v[3], v[4], Var(), {});
    }).training_only = true;
}

/// Images (N, S, S, I), a kernel of `size` x `size` padded with zeros so that the images keep their size.
void convolution(Families& to, std::string op, int size, int stride, bool bias, std::vector<Shape> shapes) {
  std::vector<std::string> operands{"x NSSI", fmt::format("w O{0}{0}I", size)};
  if (bias) operands.emplace_back("bias O");
  to.add(std::move(op), "NxSxIxO", operands, std::move(shapes),
         [=](In v) { return conv2d(v[0], v[1], bias ? v[2] : Var(), {.stride = stride, .pad = size / 2}); });
}

/// The layers of SimpleCNN (batch 128, with bias) and of ResNet-18 on 32 x 32 images (batch 32).
void convolutions(Families& to) {
  const std::vector<Shape> narrowing{{32, 32, 64, 128}, {32, 16, 128, 256}, {32, 8, 256, 512}};
  convolution(to, "conv2d+bias", 3, 1, true, {{128, 32, 3, 64}, {128, 16, 64, 128}, {128, 8, 128, 256}});
  convolution(to, "conv2d", 3, 1, false, {{32, 32, 64, 64}, {32, 16, 128, 128}, {32, 8, 256, 256}, {32, 4, 512, 512}});
  convolution(to, "conv2d+stride2", 3, 2, false, narrowing);
  convolution(to, "conv2d+1x1", 1, 2, false, narrowing);
  // Of ResNet-50 on 224 x 224 images, and its first layer.
  convolution(to, "conv2d+pointwise", 1, 1, false, {{8, 56, 64, 256}});
  convolution(to, "conv2d+stem", 7, 2, false, {{8, 224, 3, 64}});
}

/// (N, K) in INT4 with groups of `group`.
Matrix<Var> int4_matrix(Graph& g, const std::string& name, const std::string& scale, std::int64_t n, std::int64_t k,
                        std::int64_t group) {
  const Var packed = g.input(name, int4::packed_spec(n, k));
  return {packed, g.input(scale, int4::scale_spec(n, k, group)), {}, {}};
}
/// The same, or dense.
Matrix<Var> decoded_matrix(In v, const std::string& name, std::int64_t n, std::int64_t k, bool int4) {
  if (int4) return int4_matrix(v.graph, name, name + ".scale", n, k, 64);
  return {v.graph.input(name, {{n, k}, v.dtype}), {}, {}, {}};
}

/// One token of a decoder: the fused ops before attention, and the first half of an MLP.
void decoding(Families& to, bool int4) {
  const std::string suffix = int4 ? "+int4" : "";
  to.add_forward(
      "norm_qkv" + suffix, "CxHxGxD", {"x 11C", "gamma C", "table 8D f32", "k_cache 18(GD)", "v_cache 18(GD)"},
      {{4096, 32, 8, 128}, {2048, 32, 4, 64}}, [int4](In v) {
        const auto width = v.dim('C'), depth = v.dim('D'), kv = v.dim('G') * depth;
        const Matrix<Var> m[] = {decoded_matrix(v, "q", v.dim('H') * depth, width, int4),
                                 decoded_matrix(v, "k", kv, width, int4), decoded_matrix(v, "v", kv, width, int4)};
        return norm_qkv(v[0], v[1], v[2], m, v[3], v[4], {.head_dim = depth, .constant_weights = true});
      });
  to.add_forward("norm_swiglu" + suffix, "NxK", {"x 11K", "gamma K"}, {{11008, 4096}, {5632, 2048}}, [int4](In v) {
    const auto gate = decoded_matrix(v, "gate", v.dim('N'), v.dim('K'), int4),
               up = decoded_matrix(v, "up", v.dim('N'), v.dim('K'), int4);
    return norm_swiglu(v[0], v[1], gate, up, {.constant_weights = true});
  });
}

void quantised(Families& to) {
  decoding(to, false), decoding(to, true);
  const auto product = [&](const char* op, bool exact, std::vector<Shape> shapes) {
    to.add_forward(op, "MxNxK", {"x MK"}, std::move(shapes), [exact](In v) {
      const auto w = int4_matrix(v.graph, "packed", "scale", v.dim('N'), v.dim('K'), 32);
      return int4_linear(v[0], w.w, w.scale, Var(), Var(), Var(), {.exact = exact, .constant_weights = true});
    });
  };
  product("int4_linear", false, {{1, 131072, 4096}, {1, 4096, 4096}, {8, 4096, 4096}, {64, 4096, 4096}});
  product("int4_linear+exact", true, {{1, 131072, 4096}, {1, 4096, 4096}});
  to.add_forward("int4_embedding", "VxCxT", {"ids T<V"}, {{50304, 768, 131072}, {50304, 768, 1024}}, [](In v) {
    const auto table = int4_matrix(v.graph, "packed", "scale", v.dim('V'), v.dim('C'), 32);
    return int4_embedding(v[0], table.w, table.scale, Var(), Var(), {.dtype = v.dtype});
  });
}

/// q, k, v packed in the output of the projection.
Var self_attention(In v, bool causal) {
  const auto width = v.dim('H') * v.dim('D');
  return attention(v.graph.slice(v[0], 0, width), v.graph.slice(v[0], width, width),
                   v.graph.slice(v[0], 2 * width, width), {.heads = static_cast<int>(v.dim('H')), .causal = causal});
}

void sequences(Families& to) {
  const std::vector<Shape> heads{{4, 12, 1024, 64}};
  to.add("attention", "BxHxTxD", {"qkv BT(3HD)"}, heads, [](In v) { return self_attention(v, false); });
  to.add("attention+causal", "BxHxTxD", {"qkv BT(3HD)"}, heads, [](In v) { return self_attention(v, true); });
  to.add_forward("attention+decode", "BxHxSxD", {"q B1(HD)", "k BS(HD)", "v BS(HD)"},
                 {{8, 12, 8192, 64}, {1, 12, 1024, 64}},
                 [](In v) {
                   const auto n = static_cast<int>(v.dim('H'));
                   return attention(v[0], v[1], v[2], {.heads = n, .cached = true});
                 })
      .position_dim = 2;
  to.add_forward("kv_cache", "BxTxC", {"k_cache BTC", "v_cache BTC", "k BTC", "v BTC"},
                 {{16, 1024, 2048}, {4, 256, 768}},
                 [](In v) { return append_to_cache(v[0], v[1], v[2], v[3]), Var(); });
  to.add("rope", "BxTxHxD", {"x BTHD", "table TD f32"}, {{8, 2048, 32, 128}, {1, 1024, 12, 64}},
         [](In v) { return rope(v[0], v[1]); });
}

void vocabulary(Families& to) {
  to.add("embedding", "VxCxT", {"table VC", "ids T<V"}, {{50304, 768, 65536}, {50304, 768, 1024}},
         [](In v) { return embedding(v[0], v[1]); });
  to.add("cross_entropy", "TxV", {"logits TV", "targets T<V"}, {{2048, 50304}},
         [](In v) { return cross_entropy(v[0], v[1])[0]; });
  to.add("cross_entropy+smoothing", "TxV", {"logits TV", "targets T<V"}, {{8192, 1000}, {128, 10}},
         [](In v) { return cross_entropy(v[0], v[1], {.label_smoothing = 0.1f})[0]; });
  to.add_forward("argmax", "RxV", {"ids R<V", "logits RV"}, {{512, 128256}, {1, 32000}},
                 [](In v) { return argmax_into(v[0], v[1]), v[0]; });
  to.add_forward("top1", "TxV", {"logits TV", "targets T<V"}, {{8192, 1000}}, [](In v) { return top1(v[0], v[1]); });
  to.add("lm_head_loss", "TxVxC", {"h TC", "w VC", "targets T<V"}, {{256, 50304, 768}},
         [](In v) { return lm_head_loss(v[0], v[1], v[2])[0]; });
  to.add("lm_head_gradient", "TxVxC", {"h TC", "w VC", "targets T<V"}, {{256, 50304, 768}}, [](In v) {
      return lm_head_gradient(v[0], v[1], v[2])[0];
    }).training_only = true;
}

/// Activations of SimpleCNN at batch 128, and those of ResNet-18 on small images.
void images(Families& to) {
  const std::vector<Shape> layers{{128, 32, 32, 64}, {128, 16, 16, 128}, {128, 8, 8, 256}};
  std::vector<Shape> residual = layers;
  residual.push_back({32, 4, 4, 512});
  for (const bool relu : {false, true})
    to.add(relu ? "batch_norm+relu" : "batch_norm", "NxHxWxC", {"x NHWC", "weight C master", "bias C master"}, layers,
           [relu](In v) { return batch_norm(v[0], v[1], v[2], Var(), Var(), {.relu = relu}); });
  to.add("batch_norm+residual_relu", "NxHxWxC", {"a NHWC", "b NHWC", "weight C master", "bias C master"}, residual,
         [](In v) { return batch_norm(v[0], v[2], v[3], Var(), Var(), {.relu = true}, v[1]); });
  to.add("max_pool2d", "NxHxWxC", {"x NHWC"}, layers, [](In v) { return max_pool2d(v[0]); });
  to.add("max_pool2d+overlap", "NxHxWxC", {"x NHWC"}, {{32, 112, 112, 64}},
         [](In v) { return max_pool2d(v[0], {.kernel = 3, .stride = 2, .pad = 1}); });
  to.add("avg_pool2d", "NxHxWxC", {"x NHWC"}, layers, [](In v) { return avg_pool2d(v[0]); });
  to.add("adaptive_avg_pool2d", "NxHxWxC", {"x NHWC"}, {{128, 8, 8, 512}, {64, 7, 7, 2048}},
         [](In v) { return adaptive_avg_pool2d(v[0]); });
}

Var sgd_step(In v) {
  record_sgd(v.graph, std::vector<SgdTensor<Var>>{{v[0], v[1], v[2]}},
             {.momentum = 0.9f, .nesterov = true, .weight_decay = 5e-4f});
  return {};
}

Var adamw_step(In v) {
  record_adamw(v.graph, std::vector<AdamWTensor<Var>>{{.value = v[0], .gradient = v[1], .m = v[2], .v = v[3]}}, {});
  return {};
}

/// Around the norm that decides whether a step is skipped.
Var scaled_loss(In v) {
  const Var scale = v.graph.input("scale", LossScale::kScale), counts = v.graph.input("counts", LossScale::kCounts);
  record_loss_scale(v.graph, scale, counts, {}, [&] { record_grad_norm(v.graph, std::vector<Var>{v[0]}, {}); });
  return {};
}

void optimizer(Families& to) {
  const std::vector<Shape> vectors{kVector, {589824}};
  to.add_forward("sgd", "N", {"p N", "p.grad N", "m N master"}, vectors, sgd_step);
  // Second moments must not be negative.
  to.add_forward("adamw", "N", {"p N", "p.grad N", "m N master", "v N master"}, vectors, adamw_step).positive = true;
  auto& scale = to.add_forward("loss_scale", "N", {"p.grad N"}, {{589824}}, scaled_loss);
  scale.index_dim = 0, scale.positive = true;
  to.add_forward("grad_norm", "N", {"gradient N"}, {{67108864}, {589824}},
                 [](In v) { return record_grad_norm(v.graph, std::vector<Var>{v[0]}, {}), Var(); });
}

}  // namespace

const std::vector<CaseFamily>& case_families() {
  static const std::vector<CaseFamily> all = [] {
    Families to;
    for (const auto add_group : {element_wise, raw_element_wise, row_wise, products, convolutions, quantised, sequences,
                                 images, vocabulary, optimizer})
      add_group(to);
    return std::move(to.list);
  }();
  return all;
}

}  // namespace hpcdl::lab
