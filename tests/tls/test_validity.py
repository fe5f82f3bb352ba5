"""The promise of runtime.tls.validity: the times openssl tells, and ValueError for all that is none."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tls.making import make_authority
from runtime.tls.validity import validity
from tests.tls.site import Site


@pytest.mark.parametrize("year", [1990, 2026, 2049, 2050, 2120])
def test_times_before_and_after_2050(year: int) -> None:
    begin = datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC)
    found = validity(make_authority("x", 2, begin).cert.decode())
    assert found.not_after_ms == int((begin + timedelta(days=2)).timestamp() * 1000)
    assert found.not_after == f"{year}-03-06T05:06:07Z"


def test_openssl_tells_the_same(site: Site) -> None:
    path = Path(site.path("server.pem"))
    told = subprocess.run(
        ["openssl", "x509", "-in", path, "-noout", "-enddate"], capture_output=True, text=True, check=True
    ).stdout
    found = datetime.strptime(told.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    assert validity(path.read_text()).not_after_ms == found.timestamp() * 1000


def test_text_that_is_no_base64_is_told_as_damage() -> None:
    with pytest.raises(ValueError, match="damaged"):
        validity("-----BEGIN CERTIFICATE-----\nM\xe9==\n-----END CERTIFICATE-----")


@given(cut=st.integers(0, 700), flipped=st.integers(0, 699), bit=st.integers(0, 7))
def test_damage_is_a_value_error(cut: int, flipped: int, bit: int) -> None:
    import base64

    der = bytearray(_DER)
    der[flipped % len(der)] ^= 1 << bit
    text = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(der[:cut]).decode()}\n-----END CERTIFICATE-----"
    try:
        validity(text)
    except ValueError:
        pass


_DER = __import__("ssl").PEM_cert_to_DER_cert(make_authority("x", 2).cert.decode())
