#include "hpcdl/quant/dequantize.h"

#include <cstring>
#include <numeric>

#include "hpcdl/instance.h"

namespace hpcdl::quant {

OwnedTensor dequantize(Pool& pool, const nn::Codec& codec, const nn::Codec::Parts<View>& parts, std::int64_t n) {
  Graph g({.inference = true});
  nn::Codec::Parts<Var> w;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i])
      w[i] = g.constant(std::string(codec.names[i].in_programs),
                        Tensor(const_cast<void*>(parts[i].data()), parts[i].spec()));
  const Var ids = g.input("ids", {{1, n}, DType::i32});
  const Instance exe(Pass::of(g, {ids}, {codec.rows(w, ids, {}, {}, DType::f32)}));
  auto* id = exe.input(0).ptr<std::int32_t>();
  std::iota(id, id + n, 0);
  StepParams params;
  Stream s(pool, &params);
  exe.run(s);
  OwnedTensor values({{n, exe.output(0)[-1]}, DType::f32});
  copy(s, values.tensor, exe.output(0).reshaped(values.tensor.shape()));
  return values;
}

}  // namespace hpcdl::quant
