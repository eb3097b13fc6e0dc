// Masks against a test of every token by itself, and the end of texts.

#include "hpcdl/infer/grammar/token_masks.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/grammar/grammar.h"
#include "hpcdl/infer/grammar/test_vocabulary.h"

namespace hpcdl::infer {
namespace {

constexpr std::array<std::int32_t, 1> kEos = {0};

bool is_set(const std::vector<std::uint32_t>& mask, std::int32_t id) {
  return mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1;
}

const std::vector<std::shared_ptr<const Grammar>>& grammars() {
  static const std::vector<std::shared_ptr<const Grammar>> all = {
      Grammar::json_object(),
      Grammar::json_schema(
          R"({"type":"array","items":{"type":"string","minLength":20,"maxLength":70},"minItems":18,"maxItems":40})"),
      Grammar::json_schema(
          R"({"type":"object","properties":{"a":{"enum":["a","ab","abc",1,12,123]},"é":{"type":"number"}},
                               "required":["é"],"additionalProperties":{"type":"integer","minimum":-5,"maximum":1230}})"),
      Grammar::regex("(a|ab|abc)*(x{30,60}|[^a-z]{2,40})?"),
      Grammar::gbnf("root ::= expr\nexpr ::= term (\", \" expr)?\nterm ::= \"[\" expr \"]\" | word+ | \"[[\" expr "
                    "\"]]\"\nword ::= [a-f]"),
      // Ambiguous: every way to nest ends at the same place.
      Grammar::gbnf("root ::= \"a\" root \"b\" | \"a\" root \"b\" \"b\" | \"ab\"")};
  return all;
}

/// The allowed tokens, from a machine without masks.
class EachToken {
 public:
  explicit EachToken(const grammar::Rules& rules) : automaton_(rules), at_(automaton_.start()) {}
  bool allows(std::string_view bytes) {
    automaton_.renew_budget();
    return automaton_.step(at_, bytes) != grammar::kDead;
  }
  void accept(std::string_view bytes) { at_ = automaton_.step(at_, bytes); }
  bool may_end() const { return automaton_.may_end(at_); }

 private:
  grammar::Automaton automaton_;
  grammar::NodeId at_;
};

TEST(token_masks, allow_what_every_token_by_itself_allows) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  std::mt19937 random(1);
  int steps = 0;
  for (const auto& grammar : grammars())
    for (int walk = 0; walk < 30; ++walk) {
      EachToken reference(grammar->rules());
      const auto constraint = constrain(grammar, vocabulary, kEos);
      std::string text;
      for (int step = 0; step < 150; ++step, ++steps) {
        std::vector<std::uint32_t> mask(static_cast<std::size_t>(vocabulary->size() + 31) / 32 + 1, ~0u);
        constraint->mask(mask);
        EXPECT_EQ(is_set(mask, 0), reference.may_end()) << text;
        EXPECT_EQ(mask.back(), 0u);
        std::vector<std::int32_t> allowed;
        for (std::int32_t id = 1; id < vocabulary->size(); ++id) {
          ASSERT_EQ(is_set(mask, id), reference.allows(vocabulary->bytes_of(id)))
              << text << " + " << vocabulary->bytes_of(id);
          if (is_set(mask, id)) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        // Longer tokens lead to more places; the others would seldom be chosen.
        std::stable_sort(allowed.begin(), allowed.end(), [&](auto a, auto b) {
          return vocabulary->bytes_of(a).size() > vocabulary->bytes_of(b).size();
        });
        const auto id = allowed[random() % (random() % 2 ? allowed.size() : std::min<std::size_t>(allowed.size(), 12))];
        constraint->accept(id);
        reference.accept(vocabulary->bytes_of(id));
        text += vocabulary->bytes_of(id);
      }
    }
  EXPECT_GT(steps, 5000);
}

TEST(token_masks, every_text_can_be_completed) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  std::mt19937 random(2);
  for (const auto& grammar : grammars())
    for (int walk = 0; walk < 50; ++walk) {
      const auto constraint = constrain(grammar, vocabulary, kEos);
      const auto text = random_text(*constraint, *vocabulary, random);
      ASSERT_TRUE(text.has_value());
      EXPECT_TRUE(grammar->accepts(*text)) << *text;
    }
}

TEST(token_masks, nesting_is_bounded_and_can_be_closed) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  const auto grammar = Grammar::json_schema("{}");
  const auto constraint = constrain(grammar, vocabulary, kEos);
  std::vector<std::uint32_t> mask(static_cast<std::size_t>(vocabulary->size() + 31) / 32);
  const std::int32_t open = '[' + 1, close = ']' + 1;
  int depth = 0;
  for (constraint->mask(mask); is_set(mask, open); constraint->mask(mask), ++depth) constraint->accept(open);
  EXPECT_GE(depth, 100);
  EXPECT_LE(depth, 120);
  for (; depth > 0; --depth) {
    ASSERT_TRUE(is_set(mask, close));
    constraint->accept(close);
    constraint->mask(mask);
  }
  EXPECT_TRUE(is_set(mask, 0));
}

TEST(token_masks, refuse_tokens_that_are_not_allowed) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  const auto constraint = constrain(Grammar::regex("ab"), vocabulary, kEos);
  EXPECT_THROW(constraint->accept(0), Error);
  EXPECT_THROW(constraint->accept('b' + 1), Error);
  EXPECT_THROW(constraint->accept(vocabulary->size()), Error);
  EXPECT_THROW(constraint->accept(-1), Error);
  std::vector<std::uint32_t> small(2);
  EXPECT_THROW(constraint->mask(small), Error);
  constraint->accept('a' + 1);
  constraint->accept('b' + 1);
  constraint->accept(0);
  EXPECT_THROW(constraint->accept('a' + 1), Error);
}

TEST(token_masks, too_many_ways_are_an_error) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  const auto constraint = constrain(Grammar::regex("(.|..){0,5000}"), vocabulary, kEos);
  EXPECT_THROW(for (int i = 0; i < 5000; ++i) constraint->accept('a' + 1), Error);
}

/// A text goes on unharmed when the masks that it uses are replaced because they have grown too large.
TEST(token_masks, texts_move_to_new_masks) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  for (const auto& grammar : grammars()) {
    grammar::TokenMasks first(grammar->rules(), vocabulary), second(grammar->rules(), vocabulary);
    std::mt19937 random(3);
    auto config = first.start();
    for (int step = 0; step < 60; ++step) {
      std::vector<std::uint32_t> mask(static_cast<std::size_t>(vocabulary->size() + 31) / 32), moved = mask;
      first.set(config, mask);
      const auto copy = second.copy(first, config);
      second.set(copy, moved);
      ASSERT_EQ(mask, moved);
      ASSERT_EQ(first.may_end(config), second.may_end(copy));
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 1; id < vocabulary->size(); ++id)
        if (is_set(mask, id)) ids.push_back(id);
      if (ids.empty()) break;
      config = first.step(config, ids[random() % ids.size()]);
    }
  }
}

TEST(vocabulary, keeps_every_token_once) {
  const Vocabulary vocabulary(test_tokens());
  const auto nodes = vocabulary.nodes();
  std::vector<int> seen(static_cast<std::size_t>(vocabulary.size()));
  std::string path;
  for (std::uint32_t i = 0; i + 1 < nodes.size(); ++i) {
    path.resize(nodes[i].depth);
    if (i > 0) path.back() = static_cast<char>(nodes[i].byte);
    for (std::uint32_t k = nodes[i].first; k < nodes[i + 1].first; ++k) {
      const auto id = vocabulary.ids()[k];
      ++seen[static_cast<std::size_t>(id)];
      EXPECT_EQ(vocabulary.bytes_of(id), path);
    }
  }
  EXPECT_EQ(seen[0], 0);
  for (std::size_t id = 1; id < seen.size(); ++id) EXPECT_EQ(seen[id], 1) << id;
}

}  // namespace
}  // namespace hpcdl::infer
