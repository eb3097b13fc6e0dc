#include "hpcdl/infer/grammar/expression.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::infer::grammar {
namespace {

std::int64_t added(std::int64_t a, std::int64_t b) { return a > Lengths::kEndless - b ? Lengths::kEndless : a + b; }

std::int64_t times(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > Lengths::kEndless / b ? Lengths::kEndless : a * b;
}

}  // namespace

Expression Expression::sequence(std::vector<Expression> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Kind::sequence, .parts = std::move(parts)};
}

Expression Expression::choice(std::vector<Expression> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Kind::choice, .parts = std::move(parts)};
}

Expression Expression::repeat(Expression part, int min, int max) {
  Expression e{.kind = Kind::repeat, .min = min, .max = max};
  e.parts.push_back(std::move(part));
  return e;
}

Lengths lengths(const Expression& e) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::chars: return {1, 1};
    case Kind::rule: return {0, Lengths::kEndless};
    case Kind::begin:
    case Kind::end: return {0, 0};
    case Kind::sequence: {
      Lengths sum{0, 0};
      for (const auto& part : e.parts) {
        const auto [min, max] = lengths(part);
        sum = {added(sum.min, min), added(sum.max, max)};
      }
      return sum;
    }
    case Kind::choice: {
      Lengths all{Lengths::kEndless, 0};
      for (const auto& part : e.parts) {
        const auto [min, max] = lengths(part);
        all = {std::min(all.min, min), std::max(all.max, max)};
      }
      return all;
    }
    case Kind::repeat: break;
  }
  const auto [min, max] = lengths(e.parts[0]);
  return {times(min, e.min), times(max, e.max == kUnbounded ? Lengths::kEndless : e.max)};
}

std::size_t size(const Expression& e) {
  std::size_t sum = 1;
  for (const auto& part : e.parts) sum += size(part);
  return sum;
}

void build(Builder& builder, const Expression& e, StateId from, StateId to, Encoding encoding) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::chars: return builder.chars(from, e.set, to, encoding);
    case Kind::rule: return builder.call(from, e.rule, to);
    case Kind::begin:
    case Kind::end: fail("grammar", "an anchor that was not resolved");
    case Kind::sequence:
      if (e.parts.empty()) return builder.jump(from, to);
      for (std::size_t i = 0; i < e.parts.size(); ++i) {
        const StateId next = i + 1 == e.parts.size() ? to : builder.state();
        build(builder, e.parts[i], from, next, encoding);
        from = next;
      }
      return;
    case Kind::choice:
      for (const auto& part : e.parts) {
        // A part of its own states: a repeat must not lead back into the others.
        const StateId first = builder.state();
        builder.jump(from, first);
        build(builder, part, first, to, encoding);
      }
      return;
    case Kind::repeat: break;
  }
  // Rounds of one length cannot be divided in two ways.
  const auto [min, max] = lengths(e.parts[0]);
  const StateId first = builder.state(), last = builder.state();
  builder.jump(from, first);
  builder.repeat(
      first, e.min, e.max, min == max && min > 0,
      [&](StateId a, StateId b) { build(builder, e.parts[0], a, b, encoding); }, last);
  builder.jump(last, to);
}

}  // namespace hpcdl::infer::grammar
