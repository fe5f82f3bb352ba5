"""What each part of a modelled group does: Controllers, masters, slaves, the network, operators."""
