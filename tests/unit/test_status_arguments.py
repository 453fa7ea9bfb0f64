"""Options of ``millrace status`` that exclude one another."""

import pytest

from millrace.cli import main


def test_it_answers_in_one_form(capsys):
    with pytest.raises(SystemExit):
        main(["status", "--metrics", "--json"])
    assert "not allowed with argument" in capsys.readouterr().err
    assert main(["status", "--metrics", "--watch"]) == 1
    assert "--metrics what Prometheus asks for once" in capsys.readouterr().err
