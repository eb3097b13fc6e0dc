#include "hpcdl/infer/grammar/anchors.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::infer::grammar {
namespace {

constexpr std::size_t kMaxBranches = 1000;

bool has_anchor(const Expression& e) {
  return e.kind == Expression::Kind::begin || e.kind == Expression::Kind::end ||
         std::any_of(e.parts.begin(), e.parts.end(), has_anchor);
}

/// One of the choices of an expression, and whether it matches only from the first character on or to the last one.
struct Branch {
  Expression body;
  bool at_begin = false, at_end = false;
};

class AnchorReader {
 public:
  explicit AnchorReader(const std::string& what) : what_(what) {}

  std::vector<Branch> branches(Expression e) const {
    if (!has_anchor(e)) return {{.body = std::move(e)}};
    if (e.kind == Expression::Kind::begin) return {{.body = {}, .at_begin = true}};
    if (e.kind == Expression::Kind::end) return {{.body = {}, .at_end = true}};
    if (e.kind == Expression::Kind::repeat) refuse();
    std::vector<Branch> out;
    if (e.kind == Expression::Kind::choice) {
      for (auto& part : e.parts)
        for (auto& branch : branches(std::move(part))) out.push_back(std::move(branch));
      limit(out);
      return out;
    }
    return of_sequence(std::move(e.parts));
  }

 private:
  std::vector<Branch> of_sequence(std::vector<Expression> parts) const {
    bool at_begin = false, at_end = false;
    while (!parts.empty() && parts.front().kind == Expression::Kind::begin) at_begin = true, parts.erase(parts.begin());
    while (!parts.empty() && parts.back().kind == Expression::Kind::end) at_end = true, parts.pop_back();
    if (parts.empty()) return {{.body = {}, .at_begin = at_begin, .at_end = at_end}};
    std::vector<Branch> firsts = branches(std::move(parts.front()));
    std::vector<Branch> lasts = {{.body = {}}};
    if (parts.size() > 1) lasts = branches(std::move(parts.back()));
    if (std::any_of(parts.begin() + 1, parts.begin() + std::max<std::ptrdiff_t>(1, std::ssize(parts) - 1), has_anchor))
      refuse();
    std::vector<Branch> out;
    for (const Branch& first : firsts)
      for (const Branch& last : lasts) {
        // "a$" followed by something, or something followed by "^a".
        if (parts.size() > 1 && (first.at_end || last.at_begin)) refuse();
        std::vector<Expression> body = {first.body};
        if (parts.size() > 1) {
          body.insert(body.end(), parts.begin() + 1, parts.end() - 1);
          body.push_back(last.body);
        }
        out.push_back({.body = Expression::sequence(std::move(body)),
                       .at_begin = at_begin || first.at_begin,
                       .at_end = at_end || first.at_end || last.at_end});
        limit(out);
      }
    return out;
  }

  void limit(const std::vector<Branch>& all) const {
    require(all.size() <= kMaxBranches, "grammar", "{}: expected at most {} choices with anchors, found more", what_,
            kMaxBranches);
  }
  [[noreturn]] void refuse() const {
    fail("grammar", "{}: \"^\" and \"$\" are supported only where a match begins or ends", what_);
  }
  const std::string& what_;
};

}  // namespace

Expression without_anchors(Expression e, bool search, const std::string& what) {
  std::vector<Expression> choices;
  const Expression anything = Expression::repeat(Expression::chars(CharSet::all()), 0, kUnbounded);
  for (auto& branch : AnchorReader(what).branches(std::move(e))) {
    std::vector<Expression> parts;
    if (search && !branch.at_begin) parts.push_back(anything);
    parts.push_back(std::move(branch.body));
    if (search && !branch.at_end) parts.push_back(anything);
    choices.push_back(Expression::sequence(std::move(parts)));
  }
  return Expression::choice(std::move(choices));
}

}  // namespace hpcdl::infer::grammar
