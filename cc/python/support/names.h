// Names that the values of an enumeration have in Python: one table serves both directions.
//
// Complexity: linear in the table.

#ifndef COOP_PYTHON_SUPPORT_NAMES_H_
#define COOP_PYTHON_SUPPORT_NAMES_H_

#include <cstddef>
#include <stdexcept>
#include <string>

namespace coop::python {

template <typename Enum>
struct Named {
  Enum value;
  const char* name;
};

template <typename Enum, size_t N>
[[nodiscard]] const char* NameOf(const Named<Enum> (&names)[N], Enum value) {
  for (const Named<Enum>& named : names) {
    if (named.value == value) return named.name;
  }
  throw std::logic_error("a value has no name in the table of its enumeration");
}

// The value of a name that a caller gave for the argument `what`; another name is an error that
// lists all of them.
template <typename Enum, size_t N>
[[nodiscard]] Enum ValueOf(const Named<Enum> (&names)[N], const std::string& given,
                           const std::string& what) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (given == names[i].name) return names[i].value;
    known += i == 0 ? "'" : i + 1 < N ? ", '" : " or '";
    known += std::string(names[i].name) + "'";
  }
  throw std::invalid_argument(what + " must be " + known + ", not '" + given + "'");
}

}  // namespace coop::python

#endif  // COOP_PYTHON_SUPPORT_NAMES_H_
