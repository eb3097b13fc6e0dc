#include "hpcdl/stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/graph/text.h"
#include "hpcdl/instance.h"

namespace hpcdl {
namespace {

constexpr Numerics kAll{.products = F32Products::tf32, .atomic_sums = true, .row_invariant = true};

std::vector<Numerics> seen;

/// Notes what its stream says.
struct Note {
  static constexpr std::string_view name = "test.note";
  static void run(Stream& s, const Grad*, const void*) { seen.push_back(s.numerics()); }
};

Recording recording(const Numerics& numerics, Stream* eager = nullptr) {
  Graph g({.numerics = numerics, .eager = eager});
  g.emit<Note>({}, nullptr, 0);
  return g.finish();
}

TEST(numerics, are_those_of_the_program_while_it_runs) {
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  const Numerics own{.atomic_sums = true};
  s.set_numerics(own);
  seen.clear();
  const Instance all(recording(kAll)), none(recording({}));
  all.run(s), none.run(s), all.run(s, 0, 1, {});
  recording(kAll, &s);
  EXPECT_EQ(seen, (std::vector<Numerics>{kAll, {}, kAll, kAll}));
  EXPECT_EQ(s.numerics(), own) << "the stream has its own again";
}

TEST(numerics, are_in_the_text_of_a_program) {
  const auto text = [](const Numerics& n) {
    const Program p = recording(n).program;
    return program_text(p, plan(p));
  };
  for (const char* line :
       {"numerics: products of f32 operands in tf32\n", "numerics: atomic sums\n", "numerics: row-invariant\n"}) {
    EXPECT_NE(text(kAll).find(line), std::string::npos) << line;
    EXPECT_EQ(text({}).find(line), std::string::npos) << line;
  }
}

TEST(numerics, of_invariant_rows_are_refused_for_ops_that_a_gpu_computes_together) {
  try {
    const Instance exe(recording({.row_invariant = true}), nullptr, Device::cuda(0));
    FAIL() << "a GPU computes these rows together";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("depend on each other: run the program on a CPU"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace hpcdl
