// Read-only Python classes of C++ structs: what was counted or found, field by field.
//
// Purpose: Python reads fields by name, and a name that does not exist is an error of the type
//   checker's.
// Model: as a frozen dataclass that only C++ makes: `__match_args__` names the fields in order, the
//   representation shows them.
// Thread rule: under the interpreter lock.

#ifndef COOP_PYTHON_SUPPORT_RECORD_H_
#define COOP_PYTHON_SUPPORT_RECORD_H_

#include <nanobind/nanobind.h>

#include <string>

namespace coop::python {

[[nodiscard]] inline std::string RecordRepr(nanobind::handle self) {
  const nanobind::handle type = self.type();
  std::string text = nanobind::str(type.attr("__name__")).c_str();
  const char* separator = "(";
  for (const nanobind::handle name : type.attr("__match_args__")) {
    text += separator;
    text += nanobind::str(name).c_str();
    text += "=";
    text += nanobind::repr(self.attr(nanobind::str(name))).c_str();
    separator = ", ";
  }
  return text + ")";
}

template <typename T>
class Record {
 public:
  // What the fields are, units included, coop_jax/_core.pyi says.
  Record(nanobind::module_& module, const char* name, const char* doc) : type_(module, name, doc) {
    type_.def("__repr__",
              [](nanobind::handle self) { return nanobind::str(RecordRepr(self).c_str()); });
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  template <typename Member>
  Record& Field(const char* name, Member T::* member) {
    type_.def_ro(name, member);
    return Named(name);
  }

  // A field whose Python value is another one than the member's.
  template <typename Getter>
  Record& Field(const char* name, Getter getter) {
    type_.def_prop_ro(name, getter);
    return Named(name);
  }

 private:
  Record& Named(const char* name) {
    names_.append(nanobind::str(name));
    type_.attr("__match_args__") = nanobind::tuple(names_);
    return *this;
  }

  nanobind::class_<T> type_;
  nanobind::list names_;
};

}  // namespace coop::python

#endif  // COOP_PYTHON_SUPPORT_RECORD_H_
