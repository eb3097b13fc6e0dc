#include "tools/roofline/rows.h"

#include <algorithm>

#include "hpcdl/core/error.h"
#include "tools/compare/protocol.h"

namespace hpcdl::lab::roofline {

namespace {

void add_parts(Row& row, const Program& program) {
  for (const auto& r : program.records) row.parts.push_back(r.cost);
  row.cost = program.cost();
}

Row blank(const Case& c, const std::string& source) {
  Row row;
  row.source = source;
  row.op = c.op, row.shape = c.shape, row.dtype = dtype_word(c.dtype), row.pass = c.backward ? "fwd+bwd" : "fwd";
  return row;
}

}  // namespace

std::string Row::label() const { return fmt::format("{} {} {} {}", op, shape, dtype, pass); }

std::vector<Case> seed_cases() {
  std::vector<Case> list;
  const auto take = [&](const char* op, const char* shape) {
    for (const auto& c : cases_at({op}, shape))
      if (c.op == op && c.dtype == DType::f32 && !c.backward) list.push_back(c);
  };
  take("add", "33554432");
  take("matmul", "4096x4096x4096");
  take("softmax", "4096x32768");
  return list;
}

void relight(Row& row, const Roofs& roofs) {
  std::vector<LightTime> lights;
  for (const auto& p : row.parts) lights.push_back(light(p, roofs));
  row.light = sum(lights);
}

Row row_of(const Case& c, const std::string& source, const Roofs& roofs) {
  Row row = blank(c, source);
  Graph g({.inference = !c.backward});
  c.record(g);
  add_parts(row, g.program());
  relight(row, roofs);
  return row;
}

Row measure(const Case& c, const std::string& source, const Place& place, const Roofs& roofs, const Timing& timing,
            std::shared_ptr<Buffer>& arena) {
  Row row = blank(c, source);
  Stream stream = place.stream;
  row.device = stream.device().is_cuda() ? "cuda" : "cpu";
  const CaseRun run = ready(c, stream, std::move(arena));
  add_parts(row, run.program());
  relight(row, roofs);
  constexpr double kSample = 2e-4;  // seconds, which are timed to better than a thousandth
  const auto result = compare::run({{"run", [&] { run.run(stream); }}}, *place.clock,
                                   {.least = 400, .most = 400, .target = kSample, .limit = timing.seconds});
  const auto spread = result.sides[0].time();
  row.runs = result.rounds();
  row.seconds = spread.median, row.fastest = spread.min, row.slowest = spread.max;
  arena = run.arena();
  return row;
}

}  // namespace hpcdl::lab::roofline
