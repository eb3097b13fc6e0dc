// The ways of a program are known without running it. Skipped without a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/ways.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/matmul/matmul.h"

namespace hpcdl {
namespace {

struct Products {
  std::vector<Var> inputs;
  Var y;  // of the second product
  Recording recorded;
};

/// Records 0 and 1 are products of different sizes, 2 is attention.
Products products() {
  Graph g({.inference = true});
  Products p;
  const auto input = [&](const char* name, Shape shape) {
    return p.inputs.emplace_back(g.input(name, {shape, DType::bf16}));
  };
  const Var x = input("x", {256, 512}), w = input("w", {512, 1024}), v = input("v", {1024, 256});
  const Var q = input("q", {2, 128, 256});
  const Var y = record<Matmul>({}, x, w);
  p.y = g.keep(record<Matmul>({}, y, v));
  g.keep(record<Attention>({.heads = 4, .causal = true}, q, q, q));
  p.recorded = g.finish();
  return p;
}

class Prepare : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    s = std::make_unique<Stream>(Device::cuda(0), pool, &params);
    auto p = products();
    y = p.y;
    exe = std::make_unique<Instance>(std::move(p.recorded), nullptr, Device::cuda(0));
    for (const auto& input : p.inputs) {
      const Tensor t = exe->tensor(input);
      const OwnedTensor zeros(t.spec());
      std::fill_n(zeros.tensor.ptr<std::byte>(), zeros.tensor.bytes(), std::byte{0});
      copy(*s, t, zeros.tensor);
    }
  }
  std::map<WayKey, WayNote> noted(const char* preferred, bool dry) {
    s->set_ways(
        std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = parse_preferred_ways(preferred, "the test")}));
    WayNotes notes;
    const WithWayNotes with(*s, notes);
    if (dry) exe->prepare(*s);
    else exe->run(*s);
    s->synchronize();
    return notes.all();
  }
  Pool pool{1};
  StepParams params;
  std::unique_ptr<Stream> s;
  std::unique_ptr<Instance> exe;
  Var y;
};

TEST_F(Prepare, notes_what_a_run_uses) {
  for (const char* preferred : {"", "gemm=plain attention=own", "gemm=cublasLt 2", "attention=cudnn"}) {
    const auto dry = noted(preferred, true), wet = noted(preferred, false);
    EXPECT_EQ(dry.size(), 3u);
    ASSERT_EQ(dry.size(), wet.size());
    std::set<int> records;
    for (const auto& [key, note] : dry) {
      ASSERT_TRUE(wet.contains(key)) << note.call;
      EXPECT_EQ(wet.at(key).used, note.used) << note.call;
      EXPECT_EQ(wet.at(key).told, note.told) << note.call;
      EXPECT_EQ(note.records.size(), 1u) << note.call;
      records.insert(note.records.begin(), note.records.end());
      if (std::string(preferred).starts_with("gemm=plain") && key.op == "gemm") {
        EXPECT_EQ(note.used, "plain");
      }
    }
    EXPECT_EQ(records.size(), 3u);
  }
}

TEST_F(Prepare, runs_nothing) {
  const Tensor out = exe->tensor(y);
  OwnedTensor before(out.spec()), after(out.spec());
  std::fill_n(before.tensor.ptr<std::byte>(), before.tensor.bytes(), std::byte{0x5a});
  copy(*s, out, before.tensor);
  noted("", true);
  copy(*s, after.tensor, out);
  EXPECT_TRUE(std::equal(before.tensor.ptr<std::byte>(), before.tensor.ptr<std::byte>() + before.tensor.bytes(),
                         after.tensor.ptr<std::byte>()));
  noted("", false);
  copy(*s, after.tensor, out);
  EXPECT_EQ(*after.tensor.ptr<std::byte>(), std::byte{0}) << "a run does write it";
}

}  // namespace
}  // namespace hpcdl
