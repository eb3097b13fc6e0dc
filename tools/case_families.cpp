#include <algorithm>

#include "tools/cases.h"
#include "tools/specs.h"

namespace hpcdl::lab {

namespace {

/// The operands of a family at one shape, as hpcdl/ops/cases.h describes them.
class Inputs {
 public:
  Inputs(Graph& g, const std::string& dims, const std::vector<std::string>& described, const Shape& s, DType d)
      : graph(g), shape(s), dtype(d), dims_(dims) {
    for (const auto& words : described) add(words);
  }
  const Var& operator[](std::size_t i) const { return vars_[i]; }
  /// Absent if it was not described.
  Var operator[](std::string_view name) const {
    const auto at = std::find(names_.begin(), names_.end(), name);
    return at == names_.end() ? Var() : vars_[static_cast<std::size_t>(at - names_.begin())];
  }
  static Var none() { return {}; }
  /// A dim by its letter.
  std::int64_t dim(char letter) const { return shape[static_cast<int>(dims_.find(letter) / 2)]; }

  Graph& graph;
  const Shape& shape;
  DType dtype;

 private:
  void add(const std::string& words) {
    const auto space = words.find(' '), end = words.find_first_of(" <", space + 1);
    const std::string name = words.substr(0, space), type = end == words.npos ? "" : words.substr(end);
    const Shape s = shape_of(words.substr(space + 1, end - space - 1));
    names_.push_back(name);
    if (type.starts_with('<'))
      vars_.push_back(graph.input(name, {s, type.ends_with(" i64") ? DType::i64 : DType::i32}));
    else if (type == " f32") vars_.push_back(graph.input(name, {s, DType::f32}));
    else vars_.push_back(graph.differentiable_input(name, {s, type == " master" ? DType::f32 : dtype}));
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
  std::vector<std::string> names_;
  std::vector<Var> vars_;
};

/// Collects the families of the specs.
class Families {
 public:
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

}  // namespace

const std::vector<CaseFamily>& case_families() {
  static const std::vector<CaseFamily> all = [] {
    using namespace contract;
    Families to;
    add_cases(to);
    relu_cases(to);
    gelu_cases(to);
    bias_gelu_cases(to);
    swiglu_cases(to);
    scale_cases(to);
    dropout_cases(to);
    cast_cases(to);
    fuse_cases(to);
    fill_cases(to);
    softmax_cases(to);
    layer_norm_cases(to);
    rms_norm_cases(to);
    matmul_cases(to);
    linear_cases(to);
    block_linear_cases(to);
    mlp_cases(to);
    conv2d_cases(to);
    norm_qkv_cases(to);
    norm_swiglu_cases(to);
    int4_linear_cases(to);
    fp8_cast_cases(to);
    fp8_layer_cases(to);
    fp8_linear_cases(to);
    fp8_quantize_cases(to);
    mx4_layer_cases(to);
    int4_embedding_cases(to);
    quant_linear_cases(to);
    quant_embedding_cases(to);
    attention_cases(to);
    chunk_attention_cases(to);
    document_attention_cases(to);
    packed_attention_cases(to);
    paged_attention_cases(to);
    kv_write_cases(to);
    rope_cases(to);
    batch_norm_cases(to);
    max_pool2d_cases(to);
    avg_pool2d_cases(to);
    adaptive_avg_pool2d_cases(to);
    embedding_cases(to);
    cross_entropy_cases(to);
    logit_rules_cases(to);
    sample_cases(to);
    logprobs_cases(to);
    moe_route_cases(to);
    expert_mlp_cases(to);
    expert_load_cases(to);
    adapter_rows_cases(to);
    expert_balance_cases(to);
    expert_exchange_cases(to);
    top1_cases(to);
    wire_codes_cases(to);
    lm_head_loss_cases(to);
    lm_head_gradient_cases(to);
    sgd_cases(to);
    adamw_cases(to);
    adamw8_cases(to);
    loss_scale_cases(to);
    grad_norm_cases(to);
    return std::move(to.list);
  }();
  return all;
}

}  // namespace hpcdl::lab
