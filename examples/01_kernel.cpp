// A kernel call: destination first, explicit stream, nothing hidden. No program, no framework.
//
//   cmake --build --preset release --target example.01_kernel && build/release/examples/01_kernel

#include <fmt/format.h>

#include "hpcdl/buffer.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/rng.h"

using namespace hpcdl;

int main() {
  Pool pool;            // as many threads as this process may use
  Stream stream(pool);  // on a CPU, work is done when the call returns

  OwnedTensor x({{4, 1000}, DType::f32}), y({{4, 1000}, DType::f32});
  for (std::int64_t i = 0; i < x.tensor.size(); ++i)
    x.tensor.ptr<float>()[i] = static_cast<float>(Rng{1, 0}.normal(static_cast<std::uint64_t>(i)));

  Softmax::forward(stream, y.tensor, x.tensor, {.scale = 0.5f});

  for (std::int64_t row = 0; row < 4; ++row) {
    double sum = 0;
    for (std::int64_t c = 0; c < 1000; ++c) sum += y.tensor.ptr<float>()[row * 1000 + c];
    fmt::print("row {} sums to {:.6f}\n", row, sum);
  }

  // Every op says how many operations it does; its operands say how many bytes have to move. Rooflines and "% of speed
  // of light" are made of these.
  const double operations = Softmax::cost(x.tensor.spec(), {}).operations;
  const auto bytes = static_cast<double>(x.tensor.bytes() + y.tensor.bytes());
  fmt::print("{} flops, {} bytes, {:.3f} flops per byte, on {}\n", operations, bytes, operations / bytes,
             simd::isa_name(simd::active_isa()));
}
