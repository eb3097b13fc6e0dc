#include "hpcdl/testing/rows_alone.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/graph/row_invariance.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl::testing {
namespace {

using contract::Contract;
using contract::Dims;
using contract::Problem;
using contract::Role;
using contract::Values;

constexpr std::int64_t kMost = 300;
constexpr std::int64_t kRows[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 127, 128, 129, 255, 256, 257, kMost};

/// How the operand of one row lies in that of many rows: in each dim the whole of it, place `row`, or its beginning.
struct Part {
  Spec many, one;
  std::int64_t row, rows;

  /// Element k of `one`, as an element of `many`.
  std::int64_t place(std::int64_t k) const {
    std::int64_t at = 0, step = 1;
    for (int d = one.shape.rank() - 1; d >= 0; --d) {
      const bool is_row = one.shape[d] == 1 && many.shape[d] == rows;
      at += (is_row ? row : k % one.shape[d]) * step;
      k /= one.shape[d], step *= many.shape[d];
    }
    return at;
  }
  bool in_one_piece() const {
    return one.size() > 0 && place(one.size() - 1) - place(0) == one.size() - 1;  // places ascend
  }
  Tensor of(const Tensor& t) const { return Tensor(t.ptr<std::byte>() + place(0) * dtype_bytes(one.dtype), one); }
};

/// Operands of one call, in the order of a contract: inputs, and all results, those included that backward keeps.
struct Operands {
  std::vector<Tensor> in;
  std::vector<OwnedTensor> out;
  std::vector<OwnedTensor> memory;  // of inputs

  void add(const Spec& s) { in.push_back(s ? memory.emplace_back(s).tensor : Tensor()); }
};

class RowTest : public ::testing::Test {
 public:
  RowTest(const Contract& c, Device device, simd::IsaKind isa, DType dtype)
      : c_(c), device_(device), isa_(isa), dtype_(dtype) {}

  void TestBody() override {
    ASSERT_FALSE(c_.rows.empty()) << c_.name << " does not say which of its dims counts rows, or contract::kNoRows";
    const ActiveIsa restore;
    ASSERT_TRUE(simd::set_active_isa(isa_));
    if (c_.rows == contract::kNoRows) return;
    for (const auto& dims : c_.row_shapes.empty() ? std::vector<Dims>{c_.typical} : c_.row_shapes)
      for (int v = 0; v < c_.variants; ++v) {
        SCOPED_TRACE(fmt::format("variant {}, dims {}", v, fmt::join(dims, " ")));
        compare(dims, v);
        if (HasFailure()) return;
      }
  }

 private:
  const OpInfo& op(const Problem& p) const { return c_.op_for ? *c_.op_for(c_.args_of(p)) : *c_.op; }

  std::vector<Values> values(const Problem& p) const {
    std::vector<Values> in;
    for (std::size_t i = 0; i < p.in.size(); ++i) {
      const auto& want = p.in[i];
      in.push_back({want.spec, std::vector<double>(static_cast<std::size_t>(want.spec.size()))});
      const Rng rng{41 + i, 6};
      if (want.spec && want.role == Role::derived) {
        c_.derive(in, i, p,
                  [&](std::int64_t k) { return static_cast<double>(rng.uniform(static_cast<std::uint64_t>(k))); });
        continue;
      }
      for (std::int64_t k = 0; k < want.spec.size(); ++k) {
        const auto u = static_cast<std::uint64_t>(k);
        auto& x = in[i][k];
        if (want.role == Role::positive) x = static_cast<double>(rng.uniform(u)) + 0.1;
        else if (want.role == Role::index || want.role == Role::index_or_none)
          x = static_cast<double>(rng.below(u, static_cast<std::uint64_t>(std::max<std::int64_t>(want.below, 1))));
        else x = rng.normal(u);
        if (want.role == Role::index_or_none && rng.below(u + (1u << 30), 5) == 0) x = -1;
      }
    }
    return in;
  }

  /// Fills the results.
  void run(const Problem& p, Operands& t, Pool& pool) const {
    const OpInfo& op = this->op(p);
    const void* args = c_.args_of(p);
    StepParams params;
    Stream s(device_, pool, &params);
    s.set_numerics({.row_invariant = true});
    std::vector<OwnedTensor> memory;
    const auto there = [&](const Tensor& host) {
      if (!device_.is_cuda()) return Grad(host, Write::overwrite);
      const Tensor own = memory.emplace_back(host.spec(), device_).tensor;
      copy(s, own, host);
      return Grad(own, Write::overwrite);
    };
    std::vector<Tensor> results;
    auto o = contract::op_operands(
        op, args, c_.backward,
        [&](int i) {
          const auto at = static_cast<std::size_t>(i);
          return at < t.in.size() && t.in[at] ? there(t.in[at]) : Grad();
        },
        [&](int i, const Spec& spec) {
          const Spec& own = c_.backward ? p.out[static_cast<std::size_t>(i)] : spec;
          t.out.push_back(own ? OwnedTensor(own) : OwnedTensor());
          return own ? Grad(results.emplace_back(there(t.out.back().tensor)), Write::overwrite)
                     : Grad(results.emplace_back(), Write::overwrite);
        });
    for (const auto& scratch : o.scratch)
      o.list.emplace_back(memory.emplace_back(scratch, device_).tensor, Write::overwrite);
    (c_.backward ? op.backward : op.forward)(s, o.list.data(), args);
    if (device_.is_cuda())
      for (std::size_t i = 0; i < results.size(); ++i)
        if (results[i]) copy(s, t.out[i].tensor, results[i]);
    s.synchronize();
  }

  static void copy_part(const Part& part, const View& many, const Tensor& one) {
    const auto size = dtype_bytes(part.one.dtype);
    for (std::int64_t k = 0; k < part.one.size(); ++k)
      std::memcpy(one.ptr<std::byte>() + k * size, static_cast<const std::byte*>(many.data()) + part.place(k) * size,
                  static_cast<std::size_t>(size));
  }

  std::size_t row_dim() const {
    const auto found = std::find_if(c_.dims.begin(), c_.dims.end(), [&](const auto& d) { return d.name == c_.rows; });
    EXPECT_NE(found, c_.dims.end()) << "\"" << c_.rows << "\" is none of the dims of " << c_.name;
    return static_cast<std::size_t>(found - c_.dims.begin());
  }
  Dims alone(const Dims& many, int variant, std::int64_t row) const {
    if (c_.row_alone) return c_.row_alone(many, variant, row);
    Dims one = many;
    one[row_dim()] = 1;
    return one;
  }

  Problem problem(Dims dims, int variant, std::int64_t rows) const {
    dims[row_dim()] = rows;
    return c_.problem(dims, dtype_, variant);
  }

  void compare(const Dims& dims, int variant) {
    const Problem most = problem(dims, variant, kMost);
    Operands all;
    for (const auto& v : values(most)) {
      all.add(v.spec);
      for (std::int64_t k = 0; k < v.size(); ++k) set_element(all.in.back(), k, v[k]);
    }
    std::vector<std::optional<Operands>> alone(kMost);
    for (const auto rows : kRows) {
      const Problem p = problem(dims, variant, rows);
      Operands many;  // the first of all rows
      for (std::size_t i = 0; i < p.in.size(); ++i) {
        many.add(p.in[i].spec);
        copy_part({most.in[i].spec, p.in[i].spec, 0, kMost}, all.in[i], many.in.back());
      }
      run(p, many, two_);
      Dims of_many = dims;
      of_many[row_dim()] = rows;
      for (std::int64_t row = 0; row < rows; ++row) {
        auto& one = alone[static_cast<std::size_t>(row)];
        if (!one || c_.row_alone) {  // which may depend on how many rows there are
          const Dims of_one = this->alone(of_many, variant, row);
          if (of_one.empty()) return;
          one = run_alone(c_.problem(of_one, dtype_, variant), p, many, row, rows);
        }
        for (std::size_t o = 0; o < many.out.size(); ++o) {
          const auto &got = many.out[o].tensor, &want = one->out[o].tensor;
          if (!got || (rows > 1 && got.spec() == want.spec())) continue;  // it has no row for each of them
          const OwnedTensor part(want.spec());
          copy_part({got.spec(), want.spec(), row, rows}, got, part.tensor);
          ASSERT_EQ(0, std::memcmp(part.tensor.data(), want.data(), static_cast<std::size_t>(want.bytes())))
              << "result " << o << ": row " << row << " of " << rows << " has other bits than alone";
        }
      }
    }
  }

  Operands run_alone(const Problem& q, const Problem& p, const Operands& many, std::int64_t row, std::int64_t rows) {
    Operands one;
    for (std::size_t i = 0; i < q.in.size(); ++i) {
      const Part part{p.in[i].spec, q.in[i].spec, row, rows};
      if (part.in_one_piece()) {
        one.in.push_back(part.of(many.in[i]));
        continue;
      }
      one.add(part.one);
      copy_part(part, many.in[i], one.in.back());
    }
    run(q, one, one_);
    return one;
  }

  const Contract& c_;
  Device device_;
  simd::IsaKind isa_;
  DType dtype_;
  Pool one_{1}, two_{2};
};

}  // namespace

void register_row_tests(const Contract& given, bool half_types) {
  static std::set<std::string, std::less<>> known;  // several specs of tests may have one contract
  if (!known.emplace(given.name).second) return;
  // Tests run after main starts and refer to the contract, so it lives as long as the process.
  static std::vector<std::unique_ptr<Contract>> contracts;
  const Contract& c = *contracts.emplace_back(std::make_unique<Contract>(given));
  const auto add = [&](std::string_view on, Device device, simd::IsaKind isa) {
    for (const auto dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (dtype != DType::f32 && !half_types) continue;
      const auto name = fmt::format("{}/{}", on, dtype_name(dtype));
      const auto make = [&c, device, isa, dtype]() -> ::testing::Test* { return new RowTest(c, device, isa, dtype); };
      ::testing::RegisterTest(fmt::format("{}/rows", c.name).c_str(), name.c_str(), nullptr, nullptr, __FILE__,
                              __LINE__, make);
    }
  };
  for (const auto isa : simd::kIsaKinds) {
    if (isa > simd::best_isa() || (isa == simd::IsaKind::amx && c.op->cls != OpClass::product)) continue;
    add(simd::isa_name(isa), {}, isa);
  }
  if (cuda_devices() > 0 && !c.backward && rows_alone_on_gpu(c.op->name))
    add("cuda", Device::cuda(0), simd::best_isa());
}

}  // namespace hpcdl::testing
