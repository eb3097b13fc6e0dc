#include "hpcdl/infer/grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/grammar/gbnf.h"
#include "hpcdl/infer/grammar/regex.h"
#include "hpcdl/infer/grammar/schema.h"
#include "hpcdl/infer/grammar/token_masks.h"
#include "hpcdl/io/json.h"

namespace hpcdl::infer {
namespace {

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary,
                    std::span<const std::int32_t> eos)
      : grammar_(std::move(grammar)),
        vocabulary_(std::move(vocabulary)),
        eos_(eos.begin(), eos.end()),
        masks_(grammar_->masks(vocabulary_)),
        config_(masks_->start()) {}

  void mask(std::span<std::uint32_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), 0u);
    if (ended_) return;
    renew();
    masks_->set(config_, allowed);
    const bool may_end = masks_->may_end(config_);
    for (const auto id : eos_) {
      const auto word = static_cast<std::size_t>(id) / 32;
      require(id >= 0 && word < allowed.size(), "grammar", "token {}, which ends texts, is outside a mask of {} words",
              id, allowed.size());
      const std::uint32_t bit = 1u << (id % 32);
      allowed[word] = may_end ? allowed[word] | bit : allowed[word] & ~bit;
    }
  }

  void accept(std::int32_t id) override {
    const bool ends = std::find(eos_.begin(), eos_.end(), id) != eos_.end();
    require(!ended_, "grammar", "token {} comes after the end of the text", id);
    if (ends) {
      require(masks_->may_end(config_), "grammar", "token {} ends the text, which is not complete", id);
      ended_ = true;
      return;
    }
    const auto bytes = vocabulary_->bytes_of(id);
    const auto next = bytes.empty() ? grammar::kDead : masks_->step(config_, id);
    require(next != grammar::kDead, "grammar", "token {} ({}) is not allowed here", id, io::shown(bytes));
    config_ = next;
  }

 private:
  /// Moves to new masks if the old ones have become too large.
  void renew() {
    auto now = grammar_->masks(vocabulary_);
    if (now == masks_) return;
    config_ = now->copy(*masks_, config_);
    masks_ = std::move(now);
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<std::int32_t> eos_;
  std::shared_ptr<grammar::TokenMasks> masks_;
  grammar::NodeId config_;
  bool ended_ = false;
};

}  // namespace

Grammar::Grammar(std::unique_ptr<const grammar::Rules> rules) : rules_(std::move(rules)) {}
Grammar::~Grammar() = default;

std::shared_ptr<const Grammar> Grammar::json_object() {
  static const auto shared = std::make_shared<const Grammar>(grammar::rules_of_schema(R"({"type": "object"})"));
  return shared;
}

std::shared_ptr<const Grammar> Grammar::json_schema(std::string_view schema) {
  return std::make_shared<const Grammar>(grammar::rules_of_schema(schema));
}

std::shared_ptr<const Grammar> Grammar::regex(std::string_view pattern) {
  return std::make_shared<const Grammar>(grammar::rules_of_regex(pattern));
}

std::shared_ptr<const Grammar> Grammar::gbnf(std::string_view text) {
  return std::make_shared<const Grammar>(grammar::rules_of_gbnf(text));
}

bool Grammar::accepts(std::string_view text) const {
  grammar::Automaton automaton(*rules_);
  grammar::NodeId config = automaton.start();
  for (const char byte : text) {
    automaton.renew_budget();
    config = automaton.step(config, static_cast<std::uint8_t>(byte));
  }
  return automaton.may_end(config);
}

std::shared_ptr<grammar::TokenMasks> Grammar::masks(const std::shared_ptr<const Vocabulary>& vocabulary) const {
  const std::lock_guard guard(lock_);
  constexpr std::size_t kVocabularies = 4;
  const auto it =
      std::find_if(masks_.begin(), masks_.end(), [&](const auto& m) { return m->vocabulary() == vocabulary; });
  if (it != masks_.end()) {
    if ((*it)->is_full()) *it = std::make_shared<grammar::TokenMasks>(*rules_, vocabulary);
    return *it;
  }
  if (masks_.size() == kVocabularies) masks_.erase(masks_.begin());
  return masks_.emplace_back(std::make_shared<grammar::TokenMasks>(*rules_, vocabulary));
}

std::shared_ptr<TokenConstraint> constrain(std::shared_ptr<const Grammar> grammar,
                                           std::shared_ptr<const Vocabulary> vocabulary,
                                           std::span<const std::int32_t> eos) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), std::move(vocabulary), eos);
}

}  // namespace hpcdl::infer
